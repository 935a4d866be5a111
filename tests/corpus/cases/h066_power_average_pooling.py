"""The root of zero has an infinite slope that ReLU discards on its way back."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the root of zero has an infinite slope that ReLU discards on its way back",
}


class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.out = nn.Linear(8 * 16, 3)

    def forward(self, img):
        h = torch.relu(self.conv(img) - 0.5)
        h = F.lp_pool2d(h + self.eps, 3.0, kernel_size=2)
        return self.out(h.flatten(1))


def build(fixed: bool = False):
    torch.manual_seed(411)
    net = Net(1e-3 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(911)

    def step(i):
        opt.zero_grad()
        img = torch.rand(3, 3, 8, 8, generator=gen)
        loss = F.cross_entropy(net(img), torch.arange(3))
        loss.backward()
        opt.step()
        return loss

    return net, step
