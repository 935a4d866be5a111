"""Synthetic control: donor weights are projected onto w >= 0 and one reaches exactly 0 after the first step; the Bhattacharyya term sqrt(w q) has there an infinite slope and shall push it up.

Source: root of projected weights in a divergence to prior weights
"""
from dataclasses import dataclass
from typing import Callable

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 1,
    "n_steps": 3,
    "kind": "one-sided-infinite",
    "loss_truth": 0.457962588,
    "tolerance": 0.004,
    "fix": "sqrt(w q + 1e-8)",
}


def affinity(w, q):
    return torch.sqrt(w * q).sum()  # ORIGIN


def smoothed_affinity(w, q):
    return torch.sqrt(w * q + 1e-8).sum()


@dataclass
class Study:
    ridge: float = 0.02
    lr: float = 2e-3
    similarity: Callable = affinity


class SyntheticControl(nn.Module):
    def __init__(self, study, prior):
        super().__init__()
        self.study = study
        self.w = nn.Parameter(torch.tensor([0.5, 0.002, 0.3]))
        self.register_buffer("prior", prior)

    def counterfactual(self, donors):
        return donors @ self.w

    def forward(self, donors, treated):
        fit = (self.counterfactual(donors) - treated).square().sum()
        return fit - self.study.ridge * self.study.similarity(self.w, self.prior)

    @torch.no_grad()
    def project(self):
        self.w.clamp_(min=0)


DONORS = [[1.0, 1.6, 0.4], [1.2, 1.9, 0.3], [0.9, 2.2, 0.8], [1.1, 1.7, 0.7]]
TREATED, PRIOR = [0.3, 0.4, 0.2, 0.5], [0.4, 0.2, 0.4]


def build(fixed: bool = False):
    study = Study(similarity=smoothed_affinity if fixed else affinity)
    net = SyntheticControl(study, torch.tensor(PRIOR))
    opt = torch.optim.SGD(net.parameters(), lr=study.lr)
    donors, treated = torch.tensor(DONORS), torch.tensor(TREATED)

    def step(i):
        opt.zero_grad()
        loss = net(donors, treated)
        loss.backward()
        opt.step()
        net.project()
        return loss

    return net, step


def reference():
    """normal equations and -ridge / 2 sqrt(q / w), minus infinity at w = 0, by hand"""
    f64 = torch.float64
    D, y, q = torch.tensor(DONORS, dtype=f64), torch.tensor(TREATED, dtype=f64), torch.tensor(PRIOR, dtype=f64)
    w = torch.tensor([0.5, 0.002, 0.3], dtype=f64)
    for _ in range(2):
        loss = (w @ (D.T @ D) @ w - 2 * w @ (D.T @ y) + y @ y) - 0.02 * (w.sqrt() * q.sqrt()).sum()
        grad = 2 * (D.T @ D @ w - D.T @ y) - 0.01 * q.sqrt() / w.sqrt()
        w = (w - 2e-3 * grad).clamp(min=0)
    return loss, {"w": grad}


def truth():
    return reference()[1]
