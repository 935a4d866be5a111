"""The Polyak step size (f - f*) / |g|^2 on a network whose units are all dead: the gradient is zero and the step infinite."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "bound the denominator",
}


class Net(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1, bias=False)
        nn.init.constant_(self.a.bias, bias)

    def forward(self, x):
        return self.b(torch.relu(self.a(x))).squeeze(-1)


@torch.no_grad()
def polyak(params, loss, eps):
    size = sum(p.grad.square().sum() for p in params)
    rate = loss / (size + eps)  # ORIGIN
    for p in params:
        p.sub_(p.grad * rate.clamp(max=0.1) if eps else p.grad * rate)


def build(fixed: bool = False):
    torch.manual_seed(306)
    net = Net(0.0 if fixed else -60.0)
    params = list(net.parameters())
    gen = torch.Generator().manual_seed(806)

    def step(i):
        x = torch.randn(10, 4, generator=gen)
        net.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        polyak(params, loss, 1e-3 if fixed else 0.0)
        return loss

    return net, step
