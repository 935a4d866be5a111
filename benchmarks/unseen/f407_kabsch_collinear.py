"""Differentiable Kabsch alignment: points on a line give two singular values of zero, and the derivative of the SVD divides by their difference."""
import torch
from torch import nn

META = {
    "origin_op": "linalg_svd", "also_ops": ["svd", "_linalg_svd"], "phase": "backward", "cause": "degenerate-matrix", "symptom": "grad-nan",
    "first_bad_step": 2, "n_steps": 3, "fix": "a small distinct diagonal before the decomposition",
}


def kabsch_rotation(p, q, jitter):
    h = p.transpose(-1, -2) @ q
    if jitter:
        h = h + jitter * torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    u, _, vh = torch.linalg.svd(h)  # ORIGIN
    d = torch.sign(torch.det(u @ vh)).detach()
    fix = torch.diag_embed(torch.stack([torch.ones_like(d), torch.ones_like(d), d], -1))
    return u @ fix @ vh


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, p, q, jitter):
        w = torch.softmax(self.weight(p), 1)
        r = kabsch_rotation(p * w, q, jitter)
        return p @ r


def build(fixed=False):
    torch.manual_seed(15)
    net = PointNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(16)

    def step(i):
        p = torch.randn(3, 6, 3, generator=gen)
        if i == 2:
            p[0] = torch.outer(p[0, :, 0], torch.tensor([1.0, 0.0, 0.0]))  # a pole seen by the scanner
        q = p + (0.01 * torch.randn(3, 6, 3, generator=gen)) * (p != 0)
        loss = ((net(p, q, 1e-3 if fixed else 0.0) - q) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
