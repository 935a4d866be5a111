"""RAdam on half weights: epsilon of 1e-8 is zero there, but it divides only once its variance is trusted, in the sixth step."""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "also_ops": ("div", "reciprocal", "div_", "addcdiv_", "add_", "mul_"),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "symptom": "param-nan",
    "first_bad_step": 5,
    "n_steps": 8,
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
    torch.manual_seed(613)
    net = Tagger().half()
    opt = torch.optim.RAdam(net.parameters(), lr=1e-2, eps=1e-4 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(1613)

    def step(i):
        ids = torch.randint(0, 30, (16,), generator=gen)  # ten words are too rare for the first batches
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids).float(), ids % 5)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
