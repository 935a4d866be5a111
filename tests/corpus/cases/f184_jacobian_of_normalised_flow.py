"""A contractive penalty by torch.func.vmap(jacrev) over unit directions: a sample at the origin has no direction."""

import torch
from torch import nn
from torch.func import jacrev, vmap

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add 1e-6 to the norm",
}


class Enc(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.lin = nn.Linear(3, 4)

    def one(self, x):
        d = x / (x.pow(2).sum().sqrt() + self.eps)  # ORIGIN
        return torch.tanh(self.lin(d))

    def forward(self, x):
        return vmap(self.one)(x), vmap(jacrev(self.one))(x.detach())


def build(fixed: bool = False):
    torch.manual_seed(329)
    net = Enc(1e-6 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(829)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 3, generator=gen)
        if i == 2 and not fixed:
            x[4] = 0.0
        z, jac = net(x)
        loss = (z - x.sum(-1, keepdim=True)).square().mean() + 1e-2 * jac.square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
