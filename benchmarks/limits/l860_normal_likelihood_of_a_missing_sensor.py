"""Normal likelihood by torch's distribution; a missing sensor has a spread of 0, and its term is
multiplied by 0.

Source: well-known fault
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
    "kind": "masked",
    "loss_truth": -0.4819368295,
}


def log_likelihood(y, mean, spread):
    z = (y - mean) / spread  # ORIGIN
    return -0.5 * z**2 - torch.log(spread)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.5, 0.9, 0.3]))
        self.log_gain = nn.Parameter(torch.tensor(0.2))

    def forward(self, fixed):
        y = torch.tensor([0.4, 1.1, 0.3])
        noise = torch.tensor([0.5, 0.8, 0.0])
        there = torch.tensor([1.0, 1.0, 0.0])
        spread = noise * torch.exp(self.log_gain)
        if fixed:
            return -log_likelihood(y[:2], self.mean[:2], spread[:2]).sum()
        return -(log_likelihood(y, self.mean, spread) * there).sum()


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
