"""A quantiser with a straight-through estimator gives its scale a gradient divided by the number of clipped elements, sometimes zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "also_ops": ("Quant", "QuantBackward", "_Quant"),
    "phase": "backward",
    "cause": "custom-backward",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "max(count, 1)",
}


class Quant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, guard):
        q = (x / scale).clamp(-2, 2)
        ctx.save_for_backward(x, scale)
        ctx.guard = guard
        return q.round() * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        clipped = (x / scale).abs() > 2
        count = clipped.sum()
        if ctx.guard:
            count = count.clamp(min=1)
        g_scale = (g * clipped * x.sign()).sum() / count  # ALSO
        return g * ~clipped, g_scale, None


class Net(nn.Module):
    def __init__(self, guard):
        super().__init__()
        self.guard = guard
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.a, self.b = nn.Linear(5, 12), nn.Linear(12, 2)

    def forward(self, x):
        h = Quant.apply(self.a(x), self.scale, self.guard)  # ORIGIN
        return self.b(h)


def build(fixed: bool = False):
    torch.manual_seed(317)
    net = Net(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(817)

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 5, generator=gen) * (0.01 if i == 2 else 2.0)
        loss = F.cross_entropy(net(x), torch.arange(10) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
