"""phi_2 = (e^z - 1 - z) / z^2 of an exponential integrator with a stiffness that starts at 0: 1/2, slope 1/6.

Source: well-known fault (ETD schemes)
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
    "loss_truth": 0.2500413323,
}


class Integrator(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([0.0, -1.0, 0.7]))
        self.dt = nn.Parameter(torch.tensor([0.5, 0.2, 0.9]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.z.abs() < 1e-1, torch.ones_like(self.z), self.z)
            phi = torch.where(self.z.abs() < 1e-1, 1 / 2 + self.z / 6 + self.z**2 / 24 + self.z**3 / 120, (torch.expm1(small) - small) / small**2)
        else:
            phi = (torch.exp(self.z) - 1 - self.z) / self.z**2  # ORIGIN
        loss = (self.dt * phi - 0.1).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Integrator()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    z = torch.tensor([0.0, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    dt = torch.tensor([0.5, 0.2, 0.9], dtype=torch.float64, requires_grad=True)
    small = torch.where(z.abs() < 1e-1, torch.ones_like(z), z)
    phi = torch.where(z.abs() < 1e-1, 1 / 2 + z / 6 + z**2 / 24 + z**3 / 120, (torch.expm1(small) - small) / small**2)
    loss = (dt * phi - 0.1).pow(2).sum()
    dz_, ddt_ = torch.autograd.grad(loss, [z, dt])
    return {"z": dz_, "dt": ddt_}
