"""Gradients by autograd.grad with retain_graph, accumulated and applied by hand."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "gradients by autograd.grad with retain_graph, accumulated and applied by hand",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def build(fixed: bool = False):
    torch.manual_seed(407)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(907)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 4, generator=gen)
        out = net(x)
        params = list(net.parameters())
        first = torch.autograd.grad(out[:, 0].square().mean(), params, retain_graph=True)
        loss = (out[:, 1] - 1).square().mean()
        second = torch.autograd.grad(loss, params, retain_graph=True)
        with torch.no_grad():
            for p, g, h in zip(params, first, second, strict=True):
                p.data = p - 0.1 * (g + h)
        loss.backward()
        opt.step()
        return loss

    return net, step
