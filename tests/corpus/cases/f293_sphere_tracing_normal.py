"""Surface normals are gradients of a distance field, divided by their length; the field is flat inside a dead
region.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "an epsilon on the length",
}


class Field(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.net, self.eps = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)), eps

    def normal(self, p):
        p = p.detach().requires_grad_()
        (g,) = torch.autograd.grad(self.net(p).sum(), p, create_graph=True)
        return g / (g.norm(dim=-1, keepdim=True) + self.eps)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2642)
    net = Field(1e-6 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2647)
    with torch.no_grad():
        net.net[0].weight.abs_()
        net.net[0].bias.abs_()

    def step(i):
        opt.zero_grad()
        p = torch.rand(8, 3, generator=gen)
        if i == 2:
            p[5] = -60.0
        loss = (net.normal(p) - 0.5).square().mean() + net.net(p).abs().mean() * 1e-3
        loss.backward()
        opt.step()
        return loss

    return net, step
