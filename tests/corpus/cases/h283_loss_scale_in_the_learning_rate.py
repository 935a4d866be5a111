"""The loss scale of 1024 is divided out in the learning rate."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "the loss scale is divided out in the learning rate",
}


def build(fixed: bool = False):
    torch.manual_seed(332)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1 / 1024)
    gen = torch.Generator().manual_seed(333)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))
        opt.zero_grad()
        (loss * 1024).backward()
        opt.step()
        return loss

    return net, step
