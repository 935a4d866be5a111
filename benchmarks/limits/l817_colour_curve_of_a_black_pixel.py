"""sRGB curve of an image: 12.92 x below a threshold and 1.055 x^(1/2.4) - 0.055 above it, chosen by
where; one pixel is black.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.04107330756,
}


def to_srgb(x):
    return torch.where(x <= 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Parameter(torch.tensor([0.0, 0.2, 0.9]))

    def forward(self, fixed):
        y = torch.tensor([0.1, 0.4, 0.8])
        if fixed:
            out = torch.stack([12.92 * self.image[0], *to_srgb(self.image[1:])])
        else:
            out = to_srgb(self.image)
        return (out - y).pow(2).sum()


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
