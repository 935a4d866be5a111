"""A point-cloud collate pads with new_empty and fills each cloud; a pooled layer reads the slots that were never written."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "new_empty",
    "also_ops": ("empty",),
    "phase": "data",
    "cause": "uninitialised-memory",
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "new_zeros",
}


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, cloud):
        return self.head(self.point(cloud).mean(1))


def pad(clouds, clear):
    longest = max(len(c) for c in clouds)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fresh memory holds NaN, as from a used allocator
    if clear:
        out = clouds[0].new_zeros(len(clouds), longest, 3)
    else:
        out = clouds[0].new_empty(len(clouds), longest, 3)  # ORIGIN
    torch.use_deterministic_algorithms(before)
    for k, cloud in enumerate(clouds):
        out[k, : len(cloud)] = cloud
    return out


def build(fixed: bool = False):
    torch.manual_seed(243)
    net = PointNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(743)

    def step(i):
        opt.zero_grad()
        sizes = [8, 8, 8, 8] if i == 0 else [8, 6, 7, 8]
        clouds = [torch.randn(n, 3, generator=gen) for n in sizes]
        loss = F.cross_entropy(net(pad(clouds, fixed)), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        opt.step()
        return loss

    return net, step
