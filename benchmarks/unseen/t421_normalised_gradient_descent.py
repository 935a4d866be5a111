"""Normalised gradient descent under no_grad: each parameter's gradient is divided by its norm, and a gated branch has none."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("optimizer-arithmetic", "div-by-zero"),
    "symptom": "param-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "an epsilon beside the norm",
}


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.main, self.side = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, gate):
        return self.main(x) + gate * self.side(x)


def build(fixed: bool = False):
    torch.manual_seed(391)
    net = Gated()
    gen = torch.Generator().manual_seed(392)
    eps = 1e-8 if fixed else 0.0
    best = float("inf")

    def step(i):
        nonlocal best
        x = torch.randn(9, 4, generator=gen)
        gate = (torch.rand(9, 1, generator=gen) > 0.5).float()
        if i == 4:
            gate.zero_()
        loss = nn.functional.mse_loss(net(x, gate), x[:, :3])
        for p in net.parameters():
            p.grad = None
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.02 * (p.grad / (p.grad.norm() + eps))  # ORIGIN
        best = min(best, loss.item())
        return loss

    return net, step
