"""Quadratic B-spline by Cox and de Boor with repeated end knots: 0 / 0 over an empty interval, times a basis function that is 0.

Source: well-known fault (clamped knot vectors)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.08765825,
    "fix": "a term over an empty knot interval is 0",
}


KNOTS = torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0])


def basis(x, i, degree, fixed):
    if degree == 0:
        return ((KNOTS[i] <= x) & (x < KNOTS[i + 1])).to(x.dtype)
    left_width = KNOTS[i + degree] - KNOTS[i]
    right_width = KNOTS[i + degree + 1] - KNOTS[i + 1]
    if fixed:
        left_width = 1.0 if left_width == 0 else left_width
        right_width = 1.0 if right_width == 0 else right_width
    rising = (x - KNOTS[i]) / left_width  # ORIGIN
    falling = (KNOTS[i + degree + 1] - x) / right_width
    return rising * basis(x, i, degree - 1, fixed) + falling * basis(x, i + 1, degree - 1, fixed)


class Curve(nn.Module):
    def __init__(self):
        super().__init__()
        self.control = nn.Parameter(torch.tensor([0.3, 1.0, -0.5, 0.8]))
        self.at = nn.Parameter(torch.tensor([0.1, 0.35, 0.8]))

    def drawn(self, fixed):
        return sum(self.control[i] * basis(self.at, i, 2, fixed) for i in range(4))

    def forward(self, fixed):
        return (self.drawn(fixed) - torch.tensor([0.4, 0.3, 0.1]).to(self.control)).pow(2).sum()


def build(fixed: bool = False):
    curve = Curve()
    opt = torch.optim.SGD(curve.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = curve(fixed)
        loss.backward()
        opt.step()
        return loss

    return curve, step


def truth():
    control = torch.tensor([0.3, 1.0, -0.5, 0.8], dtype=torch.float64)
    gc, gx = torch.zeros(4, dtype=torch.float64), []
    for x, y in ((0.1, 0.4), (0.35, 0.3), (0.8, 0.1)):
        s = x if x < 0.5 else 1 - x  # the second half is the mirror image of the first
        b = torch.tensor([(1 - 2 * s) ** 2, 4 * s - 6 * s**2, 2 * s**2, 0.0], dtype=torch.float64)
        db = torch.tensor([-4 * (1 - 2 * s), 4 - 12 * s, 4 * s, 0.0], dtype=torch.float64)
        if x >= 0.5:
            b, db = b.flip(0), -db.flip(0)
        left = 2 * (control @ b - y)
        gc += left * b
        gx.append(left * (control @ db))
    return {"control": gc, "at": torch.stack(gx)}
