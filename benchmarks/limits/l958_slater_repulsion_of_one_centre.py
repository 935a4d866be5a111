"""Coulomb integral of two 1s orbitals, (1 - (1 + 11/8 R + 3/4 R^2 + R^3/6) e^-2R) / R, at a probe on the nucleus: 5/8."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.007710287391,
    "fix": "the series 5/8 - R^2 / 12 near 0",
}


class ChargeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [1.1, 0.2, -0.4]]))
        self.charges = nn.Parameter(torch.tensor([0.6, -0.45]))
        self.register_buffer("probes", torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.9, 0.3], [-1.0, 0.4, 0.8]]))
        self.register_buffer("potential", torch.tensor([0.15, 0.05, 0.2]))

    def repulsion(self, fixed):
        offset = self.probes.unsqueeze(1) - self.centres.unsqueeze(0)
        r2 = offset.pow(2).sum(-1)
        if fixed:
            near = r2 < 1e-3
            r = torch.where(near, torch.ones_like(r2), r2).sqrt()
        else:
            r = torch.sqrt(r2)
        poly = 1 + r * (11 / 8 + r * (3 / 4 + r / 6))
        screened = 1 - poly * torch.exp(-2 * r)
        if fixed:
            return torch.where(near, 5 / 8 - r2 / 12, screened / r)
        return screened / r  # ORIGIN

    def forward(self, fixed):
        field = torch.einsum("pc,c->p", self.repulsion(fixed), self.charges)
        return (field - self.potential).square().sum() + 0.1 * self.charges.sum() ** 2


def build(fixed: bool = False):
    net = ChargeModel()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(centres, charges, probes, potential):
    far = [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    j = {(0, 0): torch.tensor(5 / 8)}  # 5/8 - R^2 / 12 + ...: no slope at R = 0
    for p, c in far:
        r = torch.linalg.vector_norm(probes[p] - centres[c])
        j[p, c] = 1 / r - torch.exp(-2 * r) * (1 / r + 11 / 8 + 3 * r / 4 + r**2 / 6)
    field = torch.stack([j[p, 0] * charges[0] + j[p, 1] * charges[1] for p in range(3)])
    return ((field - potential) ** 2).sum() + 0.1 * charges.sum() ** 2


def truth():
    net = ChargeModel().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
