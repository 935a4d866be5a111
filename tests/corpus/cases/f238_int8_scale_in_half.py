"""Dynamic int8 activation quantisation in float16: 127 over a row maximum of 1e-3 is larger than 65504."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mul",
    "also_ops": ("reciprocal", "div"),
    "phase": "forward",
    "cause": "div-by-tiny",
    "also_causes": ("dtype-overflow",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "compute the scale in float32",
}


class DynamicQuant(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.wide = wide

    def forward(self, x):
        y = x.float() if self.wide else x
        s = 127 / y.detach().abs().amax(-1, keepdim=True)  # ORIGIN
        q = (y * s).round() / s
        return x + (q.to(x.dtype) - x).detach()


class Net(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.a, self.q, self.b = nn.Linear(6, 12), DynamicQuant(fixed), nn.Linear(12, 2)

    def forward(self, x):
        return self.b(self.q(torch.tanh(self.a(x))))


def build(fixed: bool = False):
    torch.manual_seed(1370)
    net = Net(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(1375)
    with torch.no_grad():
        net.a.bias.copy_(torch.linspace(-1e-3, 1e-3, 12))

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        if i == 2:
            x[5] = 0
        loss = F.cross_entropy(net(x.half()).float(), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
