"""A custom inverse whose forward replaces 1/0 by 0 and whose backward forgets to."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("inverse",),
    "phase": "backward",
    "cause": "custom-backward",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "use the guarded result",
}


class Inverse(torch.autograd.Function):
    @staticmethod
    def forward(x, guard):
        return torch.where(x == 0, 0.0, 1 / x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)
        ctx.guard = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        if ctx.guard:
            return -grad * y * y, None
        return -grad / x**2, None  # ALSO


class Degrees(nn.Module):
    def __init__(self, guard):
        super().__init__()
        self.edge, self.guard = nn.Linear(2, 1), guard

    def forward(self, e, adj):
        w = torch.relu(self.edge(e)).squeeze(-1) * adj
        return w * Inverse.apply(w.sum(1, keepdim=True), self.guard)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2684)
    net = Degrees(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2689)
    with torch.no_grad():
        net.edge.weight.abs_()
        net.edge.bias.fill_(0.3)

    def step(i):
        opt.zero_grad()
        e, adj = torch.rand(5, 5, 2, generator=gen), torch.ones(5, 5)
        if i == 2:
            adj[3] = 0
        loss = (net(e, adj).square().sum(1) - 0.3).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
