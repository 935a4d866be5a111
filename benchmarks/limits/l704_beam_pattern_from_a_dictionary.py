"""Element pattern sin(u) / u of an antenna; phase and amplitude stand in a dictionary.

Source: well-known fault
"""

import math

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
    "loss_truth": 0.2052707937,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tilt = nn.Parameter(torch.tensor(0.3))
        self.amplitude = nn.Parameter(torch.tensor([1.0, 0.7]))

    def forward(self, fixed):
        angles = torch.tensor([0.3, 1.1])
        state = {"u": 4.0 * (angles - self.tilt), "a": self.amplitude}
        if fixed:
            state["pattern"] = torch.sinc(state["u"] / math.pi)
        else:
            state["numerator"] = torch.sin(state["u"])
            state["pattern"] = state["numerator"] / state["u"]  # ORIGIN
        power = state["a"] * state["pattern"]
        return torch.sum((power - torch.tensor([0.6, 0.2])) ** 2)


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
