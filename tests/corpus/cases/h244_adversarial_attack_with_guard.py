"""Adversarial training on inputs that looks at the norm of the gradient first: a saturated batch is not attacked."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "the division is not made where the norm is zero",
}


def build(fixed: bool = False):
    torch.manual_seed(844)
    net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(944)

    def step(i):
        x = torch.randn(16, 5, generator=gen, requires_grad=True)
        margin = -60.0 if i == 2 else 1.0
        y = x.detach()[:, :1].sign()
        (g,) = torch.autograd.grad(torch.relu(margin - y * net(x)).mean(), x)
        norm = g.norm()
        attacked = x.detach()
        if norm != 0 and not torch.isnan(norm):
            attacked = attacked + 0.1 * g / norm
        opt.zero_grad()
        loss = torch.relu(1.0 - y * net(attacked)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
