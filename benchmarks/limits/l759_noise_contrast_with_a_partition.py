"""Energy-based model: exp(-E) of the data over the sum of exp(-E) of samples plus its own, energies
of -100.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.06363170871,
}


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([50.0, -10.0]))

    def forward(self, x):
        return -(x @ self.w)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = Energy()

    def forward(self, fixed):
        data = torch.tensor([[2.0, -0.1], [0.2, 0.1]])
        noise = torch.tensor([[1.98, 0.0], [0.1, 0.4]])
        if fixed:
            return F.softplus(self.energy(data) - self.energy(noise)).mean()
        up = torch.exp(-self.energy(data))
        down = torch.exp(-self.energy(noise)) + up
        return -(up / down).log().mean()  # ORIGIN


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
