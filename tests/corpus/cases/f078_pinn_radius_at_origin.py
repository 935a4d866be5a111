"""A physics-informed net in polar features: at a collocation point in the origin the inner gradient of r = sqrt(x^2 + y^2) is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "an epsilon under the root",
}


class Potential(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, xy):
        r = torch.sqrt(xy.square().sum(-1, keepdim=True) + self.eps)  # ORIGIN
        return self.net(torch.cat([xy, r], -1)).squeeze(-1)


def residual(net, xy):
    xy = xy.requires_grad_()
    u = net(xy)
    (du,) = torch.autograd.grad(u.sum(), xy, create_graph=True)
    return (du.square().sum(-1) - 1).square().mean() + 0.1 * u.square().mean()


def build(fixed: bool = False):
    torch.manual_seed(78)
    net = Potential(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(178)

    def step(i):
        if i == 2:
            line = torch.linspace(-1, 1, 5)  # a regular grid for once; it holds the origin
            xy = torch.cartesian_prod(line, line)
        else:
            xy = 2 * torch.rand(25, 2, generator=gen) - 1
        opt.zero_grad()
        loss = residual(net, xy)
        loss.backward()
        opt.step()
        return loss

    return net, step
