"""Orthogonal alignment by SVD: a symmetric point pattern gives a cross-covariance with equal singular values."""
import torch
from torch import nn

META = {
    "origin_op": "svd",
    "phase": "backward",
    "cause": "repeated-singular-values",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 1,
    "kind": "removable",
    "loss_truth": 0.85,
    "fix": "Newton's iteration for the polar factor",
}


def align(src, dst, fixed):
    M = src.mT @ dst
    if fixed:
        for _ in range(12):
            M = (M + torch.linalg.inv(M).mT) / 2
        return M
    U, S, Vh = torch.linalg.svd(M)  # ORIGIN
    return U @ Vh


class Landmarks(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))


def build(fixed: bool = False):
    net = Landmarks()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    canonical = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    heading = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])

    def step(i):
        opt.zero_grad()
        R = align(net.points, canonical, fixed)
        loss = (R - heading).pow(2).sum() + 0.1 * net.points.pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    # M = 2: d R = (dM - dM^T) / 4
    f8 = torch.float64
    P = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=f8)
    G = 2 * (torch.eye(2, dtype=f8) - torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=f8))
    return {"points": P @ ((G - G.T) / 4).T + 0.1 * 2 * P / 8}
