"""Self-training of a small language model: sampling filters logits outside the top k to -inf, then the sample is trained on."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the filtered logits only feed the sampler; k of them stay finite"}


class CharRNN(nn.Module):
    def __init__(self, vocab=14, dim=16):
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(vocab, dim), nn.GRUCell(dim, dim), nn.Linear(dim, vocab)

    def forward(self, ids):
        state, logits = torch.zeros(ids.shape[0], 16), []
        for token in ids.unbind(1):
            state = self.cell(self.emb(token), state)
            logits.append(self.out(state))
        return torch.stack(logits, 1)


@torch.no_grad()
def generate(net, ids, length, gen, k=4):
    for _ in range(length):
        logits = net(ids)[:, -1]
        edge = logits.topk(k).values[:, -1:]
        logits[logits < edge] = -torch.inf
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1, generator=gen)], 1)
    return ids


def build(fixed: bool = False):
    torch.manual_seed(4)
    net = CharRNN()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(304)

    def step(i):
        prompt = torch.randint(0, 14, (4, 2), generator=gen)
        ids = generate(net, prompt, 4, gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        return loss

    return net, step
