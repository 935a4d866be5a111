"""Shampoo by hand: the preconditioner of a short batch is rank-deficient, and rounding makes eigenvalues slightly negative."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "pow-negative-base",
    "also_causes": ("pow-fraction-at-zero", "div-by-zero"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 1,
    "fix": "add a ridge and clamp the eigenvalues",
}


@torch.no_grad()
def inverse_fourth_root(matrix, ridge):
    values, vectors = torch.linalg.eigh(matrix)
    if ridge:
        values = values.clamp(min=0) + ridge
    return vectors @ torch.diag(values.pow(-0.25)) @ vectors.T  # ORIGIN


class Shampoo:
    def __init__(self, params, lr, ridge):
        self.params, self.lr, self.ridge = list(params), lr, ridge
        self.left = [torch.zeros(p.shape[0], p.shape[0]) for p in self.params]
        self.right = [torch.zeros(p.shape[1], p.shape[1]) for p in self.params]

    @torch.no_grad()
    def step(self):
        for p, left, right in zip(self.params, self.left, self.right, strict=True):
            left.add_(p.grad @ p.grad.T)
            right.add_(p.grad.T @ p.grad)
            update = inverse_fourth_root(left, self.ridge) @ p.grad @ inverse_fourth_root(right, self.ridge)
            p.sub_(self.lr * update)


def build(fixed: bool = False):
    torch.manual_seed(611)
    net = nn.Sequential(nn.Linear(20, 16, bias=False), nn.Tanh(), nn.Linear(16, 10, bias=False))
    opt = Shampoo(net.parameters(), 0.02, 1e-4 if fixed else 0.0)
    gen = torch.Generator().manual_seed(711)

    def step(i):
        x = torch.randn(4, 20, generator=gen)
        net.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :10])
        loss.backward()
        opt.step()
        return loss

    return net, step
