"""Beam search for a sample between the training steps: scores start at -inf, finished beams only extend by eos."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 3, "why": "decoding is under no_grad and its -inf only rank"}


class LM(nn.Module):
    def __init__(self, v=8):
        super().__init__()
        self.emb, self.out, self.v = nn.Embedding(v, 8), nn.Linear(8, v), v

    def forward(self, ids):
        return self.out(self.emb(ids))

    @torch.inference_mode()
    def beam(self, k=3, n=5, eos=0):
        seq, score = torch.ones(k, 1, dtype=torch.long), torch.full((k,), float("-inf"))
        score[0] = 0
        for _ in range(n):
            logp = self(seq[:, -1]).log_softmax(-1)
            done = seq[:, -1] == eos
            logp[done] = float("-inf")
            logp[done, eos] = 0
            score, flat = (score[:, None] + logp).flatten().topk(k)
            seq = torch.cat([seq[flat // self.v], (flat % self.v)[:, None]], 1)
        return seq[0]


def build(fixed=False):
    torch.manual_seed(333)
    net = LM()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(334)

    def step(i):
        ids = torch.randint(0, 8, (4, 7), generator=gen)
        loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        net.beam()
        return loss

    return net, step
