"""Flow matching with a learned source point: the conditional velocity (x1 - x_t) / (1 - t) is 0 / 0 at t = 1; it is x1 - x0 at every t.

Source: rectified flow with times on a closed grid
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 3,
    "kind": "removable",
    "loss_truth": 0.7957236713,
    "fix": "x1 - x0",
}


class LinearPath:
    def position(self, x0, x1, t):
        return (1 - t) * x0 + t * x1

    def velocity(self, x0, x1, t):
        return (x1 - self.position(x0, x1, t)) / (1 - t)  # ORIGIN


class StraightPath(LinearPath):
    def velocity(self, x0, x1, t):
        return x1 - x0


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.3, -0.2], [0.1, 0.4]]))
        self.c = nn.Parameter(torch.tensor([0.2, -0.1]))

    def forward(self, x, t):
        return x @ self.a.T + t * self.c


class FlowMatching(nn.Module):
    def __init__(self, path, field):
        super().__init__()
        self.path, self.field = path, field
        self.source = nn.Parameter(torch.tensor([0.5, -0.5]))
        self.criterion = nn.MSELoss()

    def training_step(self, x1, noise, t):
        x0 = self.source + noise
        xt = self.path.position(x0, x1, t)
        return self.criterion(self.field(xt, t), self.path.velocity(x0, x1, t))


X1 = [[1.0, 0.7], [-0.4, 1.3], [0.6, -0.8]]
NOISE = [[0.3, -0.2], [-0.6, 0.1], [0.4, 0.5]]
GRID = [[0.0, 0.25, 0.5], [0.5, 0.75, 1.0]]


def build(fixed: bool = False):
    net = FlowMatching(path=StraightPath() if fixed else LinearPath(), field=Field())
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    x1, noise, grid = torch.tensor(X1), torch.tensor(NOISE), torch.tensor(GRID)

    def step(i):
        opt.zero_grad()
        loss = net.training_step(x1, noise, grid[i % 2][:, None])
        loss.backward()
        opt.step()
        return loss

    return net, step


def reference():
    """residual r = A((1 - t) x0 + t x1) + t c - x1 + x0, gradients by hand"""
    f64 = torch.float64
    A, c = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=f64), torch.tensor([0.2, -0.1], dtype=f64)
    source, eye = torch.tensor([0.5, -0.5], dtype=f64), torch.eye(2, dtype=f64)
    x1, noise = torch.tensor(X1, dtype=f64), torch.tensor(NOISE, dtype=f64)
    for times in GRID:
        loss, gA, gc, gs = 0.0, torch.zeros_like(A), torch.zeros_like(c), torch.zeros_like(source)
        for n, t in enumerate(times):
            x0 = source + noise[n]
            x = (1 - t) * x0 + t * x1[n]
            r = A @ x + t * c - x1[n] + x0
            loss, left = loss + (r**2).sum() / 6, r / 3
            gA, gc, gs = gA + left[:, None] * x, gc + t * left, gs + ((1 - t) * A + eye).T @ left
        A, c, source = A - 0.02 * gA, c - 0.02 * gc, source - 0.02 * gs
    return loss, {"source": gs, "field.a": gA, "field.c": gc}


def truth():
    return reference()[1]
