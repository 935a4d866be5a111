"""Two-point flux on a grid: face permeability is the harmonic mean of the cells, 2 / (1 / a + 1 / b); an impermeable cell (0) may still open up."""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.3118246914,
    "fix": "2 a b / (a + b)",
}


def harmonic(a, b, fixed):
    if fixed:
        return 2 * a * b / (a + b)
    return 2 / (1 / a + 1 / b)  # ORIGIN


class Reservoir(nn.Module):
    def __init__(self):
        super().__init__()
        self.perm = nn.Parameter(torch.tensor([[1.0, 0.5, 2.0], [0.8, 0.0, 1.2]]))

    def outflow(self, p, fixed):
        tx = harmonic(self.perm[:, :-1], self.perm[:, 1:], fixed)
        ty = harmonic(self.perm[:-1], self.perm[1:], fixed)
        q = torch.zeros(2, 3)
        fx, fy = tx * p.diff(dim=1), ty * p.diff(dim=0)
        q[:, :-1] += fx
        q[:, 1:] -= fx
        q[:-1] += fy
        q[1:] -= fy
        return q


def build(fixed: bool = False):
    m = Reservoir()
    optim = torch.optim.Adam(m.parameters(), lr=1e-4)
    p = torch.tensor([[1.0, 0.7, 0.1], [0.9, 0.5, 0.0]])
    source = torch.tensor([[-0.4, -0.3, 0.8], [-0.1, 0.2, 0.1]])

    def step(i):
        loss = (m.outflow(p, fixed) - source).square().sum()
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        return loss

    return m, step


def truth():
    k = [[1.0, 0.5, 2.0], [0.8, 0.0, 1.2]]
    p, q = [[1.0, 0.7, 0.1], [0.9, 0.5, 0.0]], [[0.4, 0.3, -0.8], [0.1, -0.2, -0.1]]
    faces = [((r, c), (r, c + 1)) for r in (0, 1) for c in (0, 1)] + [((0, c), (1, c)) for c in (0, 1, 2)]
    for (a, b), (c, d) in faces:
        f = 2 * k[a][b] * k[c][d] / (k[a][b] + k[c][d]) * (p[c][d] - p[a][b])
        q[a][b] += f
        q[c][d] -= f
    g = torch.zeros(2, 3, dtype=torch.float64)
    for (a, b), (c, d) in faces:
        left = 2 * (q[a][b] - q[c][d]) * (p[c][d] - p[a][b])
        total = (k[a][b] + k[c][d]) ** 2
        g[a, b] += left * 2 * k[c][d] ** 2 / total
        g[c, d] += left * 2 * k[a][b] ** 2 / total
    return {"perm": g}
