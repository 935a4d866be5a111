"""Pinhole projection x / z of points, those that are not in front of the camera replaced by where
afterwards; one has depth 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.0996,
}


class Camera(nn.Module):
    def __init__(self):
        super().__init__()
        self.focal = nn.Parameter(torch.tensor(1.2))

    def forward(self, points):
        z = points[:, 2:]
        uv = self.focal * points[:, :2] / z  # ORIGIN
        return torch.where(z > 0, uv, torch.zeros_like(uv))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Parameter(
            torch.tensor([[0.5, 0.2, 1.0], [0.3, -0.4, 0.0], [-0.2, 0.6, 2.0]])
        )
        self.camera = Camera()

    def forward(self, fixed):
        if fixed:
            uv = self.camera(self.points[[0, 2]])
            return (uv - torch.tensor([[0.4, 0.1], [0.0, 0.2]])).pow(2).sum()
        return (
            (self.camera(self.points) - torch.tensor([[0.4, 0.1], [0.0, 0.0], [0.0, 0.2]]))
            .pow(2)
            .sum()
        )


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
