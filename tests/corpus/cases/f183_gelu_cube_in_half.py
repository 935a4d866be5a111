"""The tanh form of GELU written out in half precision: three times the square of an activation of 160 overflows in the derivative of its cube."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "pow",
    "also_ops": ("mul",),
    "phase": "backward",
    "cause": "dtype-overflow",
    "also_causes": ("zero-times-inf",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": 'F.gelu(approximate="tanh")',
}


class Gelu(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused

    def forward(self, x):
        if self.fused:
            return F.gelu(x, approximate="tanh")
        cube = x**3  # ORIGIN
        inner = 0.79788456 * (x + 0.044715 * cube)
        return 0.5 * x * (1 + torch.tanh(inner))


class Net(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.a, self.act, self.b = nn.Linear(6, 24), Gelu(fused), nn.Linear(24, 2)

    def forward(self, x):
        return self.b(self.act(self.a(x)))


def build(fixed: bool = False):
    torch.manual_seed(327)
    net = Net(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(827)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        if i == 2:
            x[3] = x[3] * 300.0
        loss = F.cross_entropy(net(x.half()).float(), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
