"""Minimum-risk training: a beam search starts all but one beam at -inf, and its hypotheses are rescored with gradient."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "dead beams fall out at the first expansion; only token ids leave the search",
}


class Decoder(nn.Module):
    def __init__(self, vocab=9, dim=16):
        super().__init__()
        self.vocab = vocab
        self.emb, self.cell, self.out = nn.Embedding(vocab, dim), nn.GRUCell(dim, dim), nn.Linear(dim, vocab)

    def advance(self, token, state):
        state = self.cell(self.emb(token), state)
        return torch.log_softmax(self.out(state), -1), state

    @torch.no_grad()
    def beam(self, start, width=3, length=4):
        score = torch.full((width,), -torch.inf)
        score[0] = 0.0
        tokens, state = torch.zeros(width, 1, dtype=torch.long), start.expand(width, -1)
        for _ in range(length):
            logp, state = self.advance(tokens[:, -1], state)
            score, flat = (score.unsqueeze(1) + logp).flatten().topk(width)
            tokens = torch.cat([tokens[flat // self.vocab], (flat % self.vocab).unsqueeze(1)], 1)
            state = state[flat // self.vocab]
        return tokens

    def rescore(self, tokens, start):
        state, total = start.expand(len(tokens), -1), 0.0
        for k in range(tokens.shape[1] - 1):
            logp, state = self.advance(tokens[:, k], state)
            total = total + logp.gather(1, tokens[:, k + 1 : k + 2]).squeeze(1)
        return total


def build(fixed: bool = False):
    torch.manual_seed(12)
    net = Decoder()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(312)

    def step(i):
        start = torch.randn(1, 16, generator=gen)
        tokens = net.beam(start)
        cost = (tokens[:, 1:] != 3).float().mean(1)
        opt.zero_grad()
        loss = (torch.softmax(net.rescore(tokens, start), 0) * cost).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
