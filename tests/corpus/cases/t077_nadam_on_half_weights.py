"""NAdam on a half-precision model with the default eps of 1e-8, which is zero in half: rows that were never looked up divide zero by zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "addcdiv_",
    "also_ops": ("_foreach_addcdiv_", "div", "_foreach_div_"),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("optimizer-arithmetic",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "eps=1e-4",
}


class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(40, 8), nn.Embedding(30, 8)

    def forward(self, u, v):
        return (self.user(u) * self.item(v)).sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(304)
    net = Rec().half()
    opt = torch.optim.NAdam(net.parameters(), lr=1e-3, eps=1e-4 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(804)

    def step(i):
        u = torch.randint(0, 30, (16,), generator=gen)
        v = torch.randint(0, 20, (16,), generator=gen)
        opt.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(u, v).float(), (u > v).float())
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
