"""Group norm by hand of a group that is constant, chosen away by where for groups that vary.

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
    "kind": "masked",
    "loss_truth": 31.25859343,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.5, 0.5, 0.5, 0.1, 0.9, 0.2], [0.3, 0.3, 0.3, -0.2, 0.4, 0.6]]))
        self.g = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, fixed):
        h = self.x.view(2, 2, 3)
        mean, var = h.mean(-1, keepdim=True), h.var(-1, unbiased=False, keepdim=True)
        varies = var > 0
        if fixed:
            std = torch.where(varies, var, torch.ones_like(var)).sqrt()
        else:
            std = var.sqrt()
        y = (h - mean) / std * self.g[None, :, None]  # ORIGIN
        goal = torch.tensor([0.3, -0.5, 1.0]).to(y)
        return torch.where(varies, (y - goal) ** 2, torch.zeros_like(y)).sum()


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
