"""Adamax on half weights: the infinity norm of an unseen word is epsilon, and 1e-8 is zero in half."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "also_ops": ("div", "_foreach_addcdiv_"),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "eps=1e-4",
}


class Tagger(nn.Module):
    def __init__(self, vocab=40, dim=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.out = nn.Linear(dim, 5)

    def forward(self, ids):
        return self.out(torch.tanh(self.emb(ids)))


def build(fixed: bool = False):
    torch.manual_seed(615)
    net = Tagger().half()
    opt = torch.optim.Adamax(net.parameters(), lr=1e-2, eps=1e-4 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(1615)

    def step(i):
        ids = torch.randint(0, 30, (16,), generator=gen)  # ten words are too rare for the first batches
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids).float(), ids % 5)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
