"""Softmax of scores over a temperature, replaced by a fixed choice where the temperature is 0.

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
    "loss_truth": 0.1187756574,
}


class Sampler(nn.Module):
    def forward(self, scores, temperature):
        t = temperature[:, None]
        soft = torch.softmax(scores / t, -1)  # ORIGIN
        hard = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores)
        return torch.where(t > 0, soft, hard)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor([[0.5, 0.9, 0.1], [0.3, -0.2, 0.4]]))
        self.temperature = nn.Parameter(torch.tensor([0.0, 0.7]))
        self.sample = Sampler()

    def forward(self, fixed):
        y = torch.tensor([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
        if fixed:
            first = (torch.tensor([0.0, 1.0, 0.0]) - y[0]).pow(2).sum()
            return (
                first
                + (torch.softmax(self.scores[1] / self.temperature[1], -1) - y[1]).pow(2).sum()
            )
        return (self.sample(self.scores, self.temperature) - y).pow(2).sum()


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
