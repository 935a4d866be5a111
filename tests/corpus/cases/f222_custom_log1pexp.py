"""A hand-written softplus Function returns exp(x) / (1 + exp(x)) in backward, inf / inf for a large activation."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "also_ops": ("div", "Softplus_", "Softplus_Backward"),
    "phase": "backward",
    "cause": "custom-backward",
    "also_causes": ("exp-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "sigmoid in backward",
}


class Softplus_(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, stable):
        ctx.save_for_backward(x)
        ctx.stable = stable
        return F.softplus(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.stable:
            return g * torch.sigmoid(x), None
        e = torch.exp(x)  # ALSO
        return g * e / (1 + e), None  # ALSO


class Net(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = Softplus_.apply(self.a(x), self.stable)  # ORIGIN
        return self.b(h).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(513)
    net = Net(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(1013)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 4, generator=gen)
        if i == 2:
            x[1] = x[1] * 500
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
