"""A custom division guards its forward against a zero denominator and forgets to do so in its backward."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("GuardedDiv", "reciprocal", "mul"),
    "phase": "backward",
    "cause": "custom-backward",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "use the guarded denominator in backward too",
}


class GuardedDiv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, guard_backward):
        safe = torch.where(b == 0, torch.ones_like(b), b)
        out = torch.where(b == 0, torch.zeros_like(a), a / safe)
        ctx.save_for_backward(out, safe if guard_backward else b)
        return out

    @staticmethod
    def backward(ctx, grad):
        out, b = ctx.saved_tensors
        da = grad / b  # ALSO
        return da, -da * out, None


class Attention(nn.Module):
    """Linear attention, normalised by the sum of its feature map."""

    def __init__(self, guard_backward, dim=12):
        super().__init__()
        self.guard = guard_backward
        self.inp = nn.Linear(4, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, 2)

    def forward(self, x, keep):
        h = torch.tanh(self.inp(x))
        q, k = nn.functional.softplus(self.q(h)), nn.functional.softplus(self.k(h)) * keep
        top = q @ (k.transpose(1, 2) @ self.v(h))
        below = (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True).expand_as(top)
        return self.out(GuardedDiv.apply(top, below, self.guard))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(55)
    net = Attention(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(155)

    def step(i):
        x = torch.randn(5, 6, 4, generator=gen)
        keep = torch.ones(5, 6, 1)
        if i == 4:
            keep[3] = 0.0  # an empty document
        y = x[..., :2]
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x, keep), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
