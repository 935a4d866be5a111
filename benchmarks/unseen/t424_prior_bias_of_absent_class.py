"""The head's bias is set to the log of the class frequencies; a class that the first file lacks gets -inf and its samples an infinite loss."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "init",
    "also_phase": "forward",
    "cause": "poisoned-parameter",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "add one to each count",
}


def build(fixed: bool = False):
    torch.manual_seed(421)
    gen = torch.Generator().manual_seed(422)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    first = torch.randint(0, 3, (100,), generator=gen)
    counts = torch.bincount(first, minlength=4).float() + (1.0 if fixed else 0.0)
    with torch.no_grad():
        net[2].bias.copy_(torch.log(counts / counts.sum()))  # ORIGIN
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        x, y = torch.randn(12, 6, generator=gen), torch.randint(0, 4, (12,), generator=gen)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
