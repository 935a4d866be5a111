"""A hard-negative InfoNCE masks same-class pairs with -inf; a batch of one class leaves no negative for logsumexp."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "logsumexp",
    "also_ops": ("sub", "exp", "add"),
    "phase": "forward",
    "cause": "softmax-all-masked",
    "also_causes": ("infeasible-likelihood",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "keep the positive in the sum",
}


class Con(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.own = own
        self.enc = nn.Linear(5, 8)

    def forward(self, x, y):
        z = F.normalize(self.enc(x), dim=-1)
        sim = z @ z.t() / 0.2
        same = y[:, None] == y[None]
        neg = sim.masked_fill(same & ~(self.own & torch.eye(len(y), dtype=torch.bool)), float("-inf"))
        return (torch.logsumexp(neg, 1) - sim.roll(1, 0).diagonal()).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(516)
    net = Con(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1016)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 5, generator=gen)
        y = torch.zeros(6).long() if i == 2 else torch.arange(6) % 3
        loss = net(x, y)
        loss.backward()
        opt.step()
        return loss

    return net, step
