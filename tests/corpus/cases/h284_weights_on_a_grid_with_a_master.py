"""Weights snapped to a bfloat16 grid after each step with a float32 master kept aside; most steps change little."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "the master weights keep what the grid rounds away",
}


def build(fixed: bool = False):
    torch.manual_seed(334)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    master = [p.detach().clone() for p in net.parameters()]
    gen = torch.Generator().manual_seed(335)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), master, strict=True):
                m -= 1e-3 * p.grad
                p.copy_(m.to(torch.bfloat16))
        return loss

    return net, step
