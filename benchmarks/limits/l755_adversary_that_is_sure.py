"""Generator loss log(1 - D(G(z))) of a discriminator whose last layer is a sigmoid in a Sequential.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -11.51641424,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Linear(1, 2)
        self.disc = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
        with torch.no_grad():
            self.gen.weight.copy_(torch.tensor([[2.0], [1.0]]))
            self.gen.bias.copy_(torch.tensor([0.1, -0.1]))
            self.disc[0].weight.copy_(torch.tensor([[9.0, 4.0]]))
            self.disc[0].bias.fill_(0.5)

    def forward(self, fixed):
        z = torch.tensor([[1.0], [-0.2]])
        fake = self.gen(z)
        if fixed:
            return -F.softplus(self.disc[0](fake)).mean()
        return torch.log(1 - self.disc(fake)).mean()  # ORIGIN


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
