"""log1p(x) / x for each row under vmap, as a weighted sum of its own row.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.3724775917,
}


def row_score(x, w):
    growth = torch.log1p(x) / x  # ORIGIN
    return (w * growth).sum()


def stable_row_score(x, w):
    near = x.abs() < 1e-3
    s = torch.where(near, torch.ones_like(x), x)
    growth = torch.where(near, 1 - x / 2 + x**2 / 3, torch.log1p(s) / s)
    return (w * growth).sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.2, 0.0, 1.0], [0.0, 0.5, 2.0]]))
        self.w = nn.Parameter(torch.tensor([0.5, 1.0, -0.5]))

    def forward(self, fixed):
        f = stable_row_score if fixed else row_score
        scores = torch.func.vmap(f, in_dims=(0, None))(self.x, self.w)
        return (scores - torch.tensor([0.5, 1.0])).pow(2).sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
