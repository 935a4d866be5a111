"""Determinantal point process over a slate: the same item twice makes the kernel singular and its log-determinant -inf."""

import torch
from torch import nn

META = {
    "origin_op": "logdet",
    "also_ops": ("linalg_slogdet", "linalg_det", "log"),
    "phase": "forward",
    "cause": "degenerate-matrix",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "add a small multiple of the identity to the kernel",
}


class Diversity(nn.Module):
    def __init__(self, ridge, items=30, dim=8):
        super().__init__()
        self.ridge = ridge
        self.item = nn.Embedding(items, dim)
        self.quality = nn.Sequential(nn.Linear(dim, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, slate):
        e = self.item(slate)
        q = torch.sigmoid(self.quality(e))
        d = e * q
        kernel = d @ d.transpose(1, 2) + self.ridge * torch.eye(slate.shape[1])
        return torch.logdet(kernel)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(50)
    net = Diversity(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(150)

    def step(i):
        slate = torch.stack([torch.randperm(30, generator=gen)[:4] for _ in range(6)])
        if i == 3:
            slate[4, 0] = slate[4, 1]
        opt.zero_grad()
        loss = -net(slate).mean() + 0.5 * net.item.weight.square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
