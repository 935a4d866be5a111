"""Orthogonal Procrustes layer U V^T of a learned matrix that is itself a scaled rotation (all singular values 2)."""
import torch
from torch import nn

META = {
    "origin_op": "svd",
    "phase": "backward",
    "cause": "repeated-singular-value",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 1,
    "kind": "removable",
    "loss_truth": 0.5766666667,
    "fix": "polar factor by Newton's iteration",
}


def nearest_rotation(a):
    u, s, vh = torch.linalg.svd(a)  # ORIGIN
    return u @ vh


def polar(a):
    x = a
    for _ in range(15):
        x = 0.5 * (x + torch.linalg.inv(x).mT)
    return x


class Align(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.0, -2.0], [2.0, 0.0]]))

    def forward(self, x, fixed):
        return x @ (polar(self.a) if fixed else nearest_rotation(self.a)).T


def build(fixed: bool = False):
    m = Align()
    optim = torch.optim.SGD(m.parameters(), lr=1e-2)
    x = torch.tensor([[1.0, 0.5], [-0.4, 1.2], [0.3, 0.3]])
    y = torch.tensor([[0.9, 0.2], [-0.9, -0.2], [0.5, 0.6]])

    def step(i):
        loss = ((m(x, fixed) - y) ** 2).mean()
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        return loss

    return m, step


def t64(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def truth():
    x, y = t64([[1.0, 0.5], [-0.4, 1.2], [0.3, 0.3]]), t64([[0.9, 0.2], [-0.9, -0.2], [0.5, 0.6]])
    r = t64([[0.0, -1.0], [1.0, 0.0]])
    g = 2 * (x @ r.T - y).T @ x / 6
    # dR = (dA - R dA^T R) / (2 * 2), its adjoint has the same form
    return {"a": (g - r @ g.T @ r) / 4}
