"""RMSprop written out on p.data, epsilon forgotten: weights that the first batches do not touch divide zero by zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "div-by-zero",
    "also_causes": ("optimizer-arithmetic",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "add 1e-8 to the root",
}


def build(fixed: bool = False):
    torch.manual_seed(655)
    net = nn.Sequential(nn.Embedding(30, 6), nn.Flatten(), nn.Linear(24, 3))
    eps = 1e-8 if fixed else 0.0
    squares = {p: torch.zeros_like(p.data) for p in net.parameters()}
    gen = torch.Generator().manual_seed(755)

    def step(i):
        ids = torch.randint(0, 20, (8, 4), generator=gen)
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), ids[:, 0] % 3)
        loss.backward()
        for p in net.parameters():
            s = squares[p]
            s.mul_(0.9).add_(0.1 * p.grad.data**2)
            p.data -= 0.01 * p.grad.data / (s.sqrt() + eps)  # ORIGIN
        return loss

    return net, step
