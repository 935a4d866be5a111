"""Free energy -log(2 cosh(h / T)) of spins at a low temperature.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "cosh",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -1.520181499,
}


def free_energy(h, temperature):
    return -temperature * torch.log(2 * torch.cosh(h / temperature))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor([1.0, -0.02, 0.5]))

    def forward(self, fixed):
        if fixed:
            x = self.h / 0.01
            return -(0.01 * (x.abs() + torch.log1p(torch.exp(-2 * x.abs())))).sum()
        return free_energy(self.h, 0.01).sum()


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
