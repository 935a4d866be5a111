"""Training on forces of an overlap energy overlap ** 1.5: energy and force are finite at zero overlap, the force's
own slope is not.
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 2,
    "n_steps": 3,
    "fix": "add an epsilon to the overlap",
}


class Contact(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.radius = nn.Parameter(torch.tensor([1.0, 1.5]))
        self.stiffness = nn.Parameter(torch.tensor(2.0))
        self.eps = eps

    def energy(self, r):
        overlap = self.radius.sum() - r + self.eps
        return (self.stiffness * overlap**1.5).sum()  # ORIGIN


def force(model, r):
    r = r.detach().requires_grad_()
    return -torch.autograd.grad(model.energy(r), r, create_graph=True)[0]


def build(fixed: bool = False):
    torch.manual_seed(970)
    net = Contact(1e-6 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(975)

    def step(i):
        opt.zero_grad()
        r = torch.rand(10, generator=gen) + 1.0
        if i == 2:
            r[6] = net.radius.detach().sum()
        loss = (force(net, r) - 1.0).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
