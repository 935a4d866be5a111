"""Lane-Emden equation y'' + 2 y' / x + y^5 = 0 with a collocation point in the centre of the star: 2 / 0 times y' = 0, where the limit is 2 y''.

Source: well-known fault (physics-informed networks in spherical coordinates)
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1020040635,
    "fix": "the equation in s = x^2: 4 s Y'' + 6 Y' + Y^5",
}
A, B, X = [-0.3, 0.1, -0.25], [0.4, 1.1, 0.7], [0.0, 0.4, 0.9, 1.5]


def slope(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


class Star(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(A))
        self.b = nn.Parameter(torch.tensor(B))

    def profile(self, s):
        return 1 + (self.a * torch.tanh(self.b * s[:, None])).sum(1)

    def residual(self, x):
        x = x.requires_grad_()
        y = self.profile(x * x)
        first = slope(y, x)
        second = slope(first, x)
        return second + 2 / x * first + y**5  # ORIGIN


class EvenStar(Star):
    def residual(self, x):
        s = (x * x).requires_grad_()
        y = self.profile(s)
        first = slope(y, s)
        return 4 * s * slope(first, s) + 6 * first + y**5


def build(fixed: bool = False):
    net = EvenStar() if fixed else Star()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = torch.tensor(X)

    def step(i):
        opt.zero_grad()
        loss = net.residual(x.clone()).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a, b = (torch.tensor(v, dtype=torch.float64) for v in (A, B))
    ga, gb = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for x in X:
        s = x * x
        t = torch.tanh(b * s)
        q = 1 - t**2
        y = 1 + (a * t).sum()
        r = (a * (6 * b * q - 8 * s * b**2 * t * q)).sum() + y**5
        ga += r / 2 * (6 * b * q - 8 * s * b**2 * t * q + 5 * y**4 * t)
        dq = -2 * t * q * s
        gb += r / 2 * a * (6 * q + 6 * b * dq - 16 * s * b * t * q - 8 * s * b**2 * (q * s * q + t * dq) + 5 * y**4 * s * q)
    return {"a": ga, "b": gb}
