"""Curvature by torch.func.hessian of an energy with a bare norm: at the origin the second derivative is NaN."""

import torch
from torch import nn
from torch.func import hessian, vmap

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "an epsilon under the root",
    "also_phase": "forward",
    "also_causes": ["norm-at-zero"],
    "also_ops": ["div"],
}


class Energy(nn.Module):
    def __init__(self, soft):
        super().__init__()
        self.soft = soft
        self.k = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.lin = nn.Linear(3, 3, bias=False)

    def energy(self, x):
        r = torch.sqrt((self.lin(x) ** 2).sum() + self.soft)  # ORIGIN
        return self.k[0] * r + self.k[1] * r**2

    def forward(self, x):
        return vmap(hessian(self.energy))(x)


def build(fixed: bool = False):
    torch.manual_seed(791)
    net = Energy(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(792)

    def step(i):
        x = torch.randn(5, 3, generator=gen)
        if i == 3:
            x[2] = 0.0  # the equilibrium itself
        opt.zero_grad()
        h = net(x)
        loss = (h - torch.eye(3)).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
