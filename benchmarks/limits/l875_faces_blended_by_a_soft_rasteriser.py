"""Soft rasteriser: coverage sigmoid(d / sigma) times exp(z / gamma) with gamma 1e-3, over the sum
of all faces, weighs the colours of a pixel.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.066091931,
}


class Rasteriser(nn.Module):
    def __init__(self, sigma=0.1, gamma=1e-3):
        super().__init__()
        self.sigma, self.gamma = sigma, gamma

    def forward(self, distance, depth, colour):
        coverage = torch.sigmoid(distance / self.sigma)
        weight = coverage * torch.exp(depth / self.gamma)
        weight = weight / weight.sum(dim=1, keepdim=True)  # ORIGIN
        return weight @ colour


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([0.502, 0.5, 0.2]))
        self.colour = nn.Parameter(torch.tensor([[1.0, 0.2], [0.1, 0.9], [0.4, 0.4]]))
        self.offset = nn.Parameter(torch.tensor([0.05, -0.02, 0.1]))
        self.render = Rasteriser()

    def forward(self, fixed):
        pixels = torch.tensor([[0.1], [-0.2]])
        target = torch.tensor([[0.7, 0.3], [0.5, 0.5]])
        distance = self.offset - pixels
        depth = self.depth.expand(2, 3)
        if fixed:
            logs = nn.functional.logsigmoid(distance / 0.1) + depth / 1e-3
            image = torch.softmax(logs, 1) @ self.colour
        else:
            image = self.render(distance, depth, self.colour)
        return ((image - target) ** 2).mean()


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
    return {name: p.grad for name, p in net.named_parameters()}
