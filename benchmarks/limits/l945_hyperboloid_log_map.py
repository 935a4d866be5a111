"""Logarithm at the origin of the hyperboloid, arccosh(u) / sqrt(u^2 - 1) times the point; an embedding sits on the origin.

Source: well-known fault (hyperbolic embeddings initialised at the origin)
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
    "kind": "removable",
    "loss_truth": 0.5390220511,
    "fix": "asinh(n) / n as a series in n^2",
}


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.spatial = nn.Parameter(torch.tensor([[0.0, 0.0], [0.7, -0.4], [-1.1, 0.2]]))

    def log_map(self, fixed):
        squared = (self.spatial**2).sum(1, keepdim=True)
        if fixed:
            tiny = squared < 1e-4
            n = torch.where(tiny, torch.ones_like(squared), squared).sqrt()
            factor = torch.where(tiny, 1 - squared / 6, torch.asinh(n) / n)
        else:
            time = torch.sqrt(1 + squared)
            factor = torch.arccosh(time) / torch.sqrt(time**2 - 1)  # ORIGIN
        return factor * self.spatial

    def forward(self, fixed):
        return ((self.log_map(fixed) - torch.tensor([[0.3, -0.2], [0.5, 0.1], [-0.6, 0.4]]).to(self.spatial)) ** 2).sum()


def build(fixed: bool = False):
    emb = Embedding()
    opt = torch.optim.SGD(emb.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = emb(fixed)
        loss.backward()
        opt.step()
        return loss

    return emb, step


def truth():
    w = torch.tensor([[0.7, -0.4], [-1.1, 0.2]], dtype=torch.float64)
    anchor = torch.tensor([[0.5, 0.1], [-0.6, 0.4]], dtype=torch.float64)
    n = w.norm(dim=1, keepdim=True)
    f = torch.asinh(n) / n
    slope = 1 / (n * torch.sqrt(1 + n**2)) - torch.asinh(n) / n**2
    left = 2 * (f * w - anchor)
    rest = left * f + (left * w).sum(1, keepdim=True) * slope * w / n
    return {"spatial": torch.cat([torch.tensor([[-0.6, 0.4]], dtype=torch.float64), rest])}
