"""A collate function pads into torch.empty and writes each sequence up to its length; the model pools over all positions."""

import torch
from torch import nn

META = {
    "origin_op": "empty",
    "also_ops": ("addmm", "mm", "view", "linear"),
    "phase": "data",
    "cause": "uninitialised-memory",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "torch.zeros",
}


class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 12))
        self.out = nn.Linear(12, 3)

    def forward(self, x):
        return self.out(self.token(x).mean(1))  # ALSO


def collate(rows, clear):
    longest = max(len(r) for r in rows)
    # deterministic mode fills fresh memory with NaN; it stands in for an allocator that hands out used memory
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    out = torch.empty(len(rows), longest, 5)  # ORIGIN
    torch.use_deterministic_algorithms(before)
    if clear:
        out.zero_()
    for k, r in enumerate(rows):
        out[k, : len(r)] = r
    return out


def build(fixed: bool = False):
    torch.manual_seed(73)
    net = Pooler()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(173)

    def step(i):
        lengths = [6, 6, 6, 6] if i < 3 else [6, 4, 6, 5]  # bucketing ends with the short bucket
        x = collate([torch.randn(n, 5, generator=gen) for n in lengths], fixed)
        y = torch.randint(0, 3, (4,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
