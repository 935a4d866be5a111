"""Batch-hard triplets: the diagonal of the distance matrix is never mined, and still sends 0/0 back through its root."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "an epsilon under the root",
}


class ReID(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv1d(12, 16, 3, padding=1), nn.ReLU())
        self.out = nn.Linear(16, 8)

    def forward(self, x):
        return self.out(self.stem(x).mean(-1))


def distances(e, eps):
    gap = e.unsqueeze(1) - e.unsqueeze(0)
    return torch.sqrt((gap * gap).sum(-1) + eps)  # ORIGIN


def batch_hard(e, who, eps, margin=0.3):
    d = distances(e, eps)
    same = who.unsqueeze(1) == who.unsqueeze(0)
    farthest = (d * same).amax(1)
    nearest = (d + 1e3 * same).amin(1)
    return torch.relu(farthest - nearest + margin).mean()


def build(fixed: bool = False):
    torch.manual_seed(16)
    net = ReID()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(116)
    who = torch.arange(4).repeat_interleave(3)

    def step(i):
        x = torch.randn(12, 3, 10, generator=gen) + who.view(-1, 1, 1)
        opt.zero_grad()
        loss = batch_hard(net(x), who, 1e-9 if fixed else 0.0)
        loss.backward()
        opt.step()
        return loss

    return net, step
