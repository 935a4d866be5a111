"""Functional hessian-vector products and a line search that tries an infinite loss."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "functional hessian-vector products and a line search that tries an infinite loss",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, 1.0]))

    def forward(self, x, w=None):
        w = self.w if w is None else w
        return -(x @ w).abs().add(1e-3).log().mean() + w.exp().mean()


def build(fixed: bool = False):
    torch.manual_seed(505)
    net = Net()
    torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(1005)

    def step(i):
        x = torch.randn(10, 2, generator=gen)
        loss = net(x)
        (g,) = torch.autograd.grad(loss, net.w, create_graph=True)
        (hv,) = torch.autograd.grad((g * g.detach()).sum(), net.w)
        rate = 200.0
        with torch.no_grad():
            while not net(x, net.w - rate * g) < loss:
                rate *= 0.5
            net.w -= rate * g + 0 * hv
        net.w.grad = None
        loss = loss.detach()
        # no backward( here: the update is by hand
        return loss

    return net, step
