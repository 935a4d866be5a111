"""Birth-death process, B = (1 - e^-rt) / (l - m e^-rt) with r = l - m, at the critical rates l = m: t / (1 + m t)."""
import numpy as np
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
    "loss_truth": 2.288320517,
    "fix": "B = t phi / (1 + mu t phi), phi = -expm1(-r t) / (r t) with its series",
}


def clade_log_prob(birth, death, age, species, fixed):
    net = birth - death
    if fixed:
        x = net * age
        near = x.abs() < 1e-2
        safe = torch.where(near, torch.ones_like(x), x)
        reach = age * torch.where(near, 1 - x / 2 + x**2 / 6 - x**3 / 24, -torch.expm1(-safe) / safe)
        b = reach / (1 + death * reach)
    else:
        decay = torch.exp(-net * age)
        b = (1 - decay) / (birth - death * decay)  # ORIGIN
    alive = torch.log1p(-death * b)
    return alive + torch.log1p(-birth * b) + (species - 1) * torch.log(birth * b)


class Diversification(nn.Module):
    def __init__(self):
        super().__init__()
        self.birth = nn.Parameter(torch.tensor([0.5, 0.9, 0.4]))
        self.death = nn.Parameter(torch.tensor([0.5, 0.3, 0.6]))
        self.register_buffer("age", torch.tensor([[2.0, 5.0], [1.0, 2.0], [1.5, 4.0]]))
        self.register_buffer("species", torch.tensor([[2.0, 4.0], [1.0, 6.0], [1.0, 2.0]]))

    def forward(self, fixed):
        over_clades = torch.func.vmap(lambda b, d, t, n: clade_log_prob(b, d, t, n, fixed))
        return -over_clades(self.birth, self.death, self.age, self.species).mean()


def build(fixed: bool = False):
    net = Diversification()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def integral(f):
    """over [0, 1], 60 nodes of Gauss and Legendre"""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    return sum(w / 2 * f((1 + x) / 2) for x, w in zip(nodes.tolist(), weights.tolist()))


def exact(birth, death, age, species):
    l, m = birth[:, None], death[:, None]
    reach = age * integral(lambda s: torch.exp(-(l - m) * age * s))  # (1 - e^-rt) / r
    b = reach / (1 + m * reach)
    return -(torch.log(1 - m * b) + torch.log(1 - l * b) + (species - 1) * torch.log(l * b)).mean()


def truth():
    net = Diversification().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
