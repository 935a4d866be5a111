"""Buffers from empty are written by out= before they are read; foreach updates by hand."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "buffers from empty are written by out= before they are read; foreach updates by hand",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.b(F.gelu(self.a(x))).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(316)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-1)
    gen = torch.Generator().manual_seed(816)
    work = torch.empty(3, 8)

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        torch.log(x[:, :3].abs().t() + 1e-3, out=work)
        loss = F.mse_loss(net(x), work.mean(0))
        opt.zero_grad()
        loss.backward(retain_graph=True)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            torch._foreach_add_(list(net.parameters()), grads, alpha=-0.05)
        return loss

    return net, step
