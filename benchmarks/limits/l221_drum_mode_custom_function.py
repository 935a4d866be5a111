"""First Bessel mode of a membrane through a custom autograd Function whose backward is J0(x) - J1(x) / x: a sensor on the node gives 0 / 0; the derivative there is 1/2."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.07507916888,
    "fix": "in the custom backward use J1(x) / x -> 1/2 - x^2 / 16 near 0",
}

AT, SEEN = [-1.0, 0.5, 0.9, 2.3], [-0.3, 0.1, 0.4, 0.2]


class BesselJ1(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, careful):
        ctx.save_for_backward(x)
        ctx.careful = careful
        return torch.special.bessel_j1(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        j0, j1 = torch.special.bessel_j0(x), torch.special.bessel_j1(x)
        if ctx.careful:
            near = x.abs() < 1e-2
            ratio = torch.where(near, 0.5 - x**2 / 16, j1 / torch.where(near, torch.ones_like(x), x))
        else:
            ratio = j1 / x
        return grad * (j0 - ratio), None


class Membrane(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.node = nn.Parameter(torch.tensor(0.5))
        self.wave = nn.Parameter(torch.tensor(1.6))
        self.height = nn.Parameter(torch.tensor(0.9))
        self.fixed = fixed

    def forward(self, at):
        x = self.wave * (at - self.node)
        return self.height * BesselJ1.apply(x, self.fixed)  # ORIGIN


def build(fixed: bool = False):
    net = Membrane(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    at, seen = torch.tensor(AT), torch.tensor(SEEN)

    def step(i):
        opt.zero_grad()
        loss = (net(at) - seen).square().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step


def reference():
    import mpmath as mp

    k, c, h = 1.6, 0.5, 0.9
    loss = node = wave = height = 0.0
    for a, y in zip(AT, SEEN):
        x = k * (a - c)
        j = float(mp.besselj(1, x))
        dj = float((mp.besselj(0, x) - mp.besselj(2, x)) / 2)  # 1/2 at 0
        left = 2 * (h * j - y)
        loss += (h * j - y) ** 2
        node += left * h * dj * -k
        wave += left * h * dj * (a - c)
        height += left * j
    names = {"node": node, "wave": wave, "height": height}
    return loss, {n: torch.tensor(v, dtype=torch.float64) for n, v in names.items()}


def truth():
    return reference()[1]
