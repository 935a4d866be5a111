"""Nearest rotation U V^T of a learned 3 x 3 matrix through the SVD, started at the identity: equal singular values."""
import torch
from torch import nn

META = {
    "origin_op": "linalg_svd",
    "phase": "backward",
    "cause": "equal-singular-values",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 1,
    "kind": "removable",
    "form": "several variables",
    "loss_truth": 0.41,
    "fix": "W (W^T W)^(-1/2) by Newton's iteration",
}


class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Parameter(torch.eye(3))

    def forward(self):
        u, s, vh = torch.linalg.svd(self.m)  # ORIGIN
        return u @ vh


class NewtonRotation(Rotation):
    def forward(self):
        x = self.m
        for _ in range(6):
            x = (x + torch.linalg.inv(x).mT) / 2
        return x


def build(fixed: bool = False):
    net = NewtonRotation() if fixed else Rotation()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    cloud = torch.tensor([[1.0, 0.2, -0.3], [0.1, 0.9, 0.4], [-0.5, 0.3, 1.1], [0.7, -0.8, 0.2]])
    turned = torch.tensor([[0.9, 0.5, -0.2], [-0.2, 0.9, 0.5], [-0.7, 0.2, 1.0], [1.0, -0.6, 0.1]])

    def step(i):
        opt.zero_grad()
        loss = (cloud @ net().mT - turned).pow(2).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    cloud = torch.tensor([[1.0, 0.2, -0.3], [0.1, 0.9, 0.4], [-0.5, 0.3, 1.1], [0.7, -0.8, 0.2]], dtype=torch.float64)
    turned = torch.tensor([[0.9, 0.5, -0.2], [-0.2, 0.9, 0.5], [-0.7, 0.2, 1.0], [1.0, -0.6, 0.1]], dtype=torch.float64)
    off = cloud - turned
    loss = off.pow(2).sum()
    g = 2 * off.T @ cloud  # by R; at the identity dR = (dM - dM^T) / 2
    return {"m": (g - g.T) / 2}
