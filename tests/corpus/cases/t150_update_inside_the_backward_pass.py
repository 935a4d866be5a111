"""The update runs in a hook as soon as a gradient is there, normalised by its length; a gate that is shut passes none to its branch."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "also_phase": "optimizer",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp the length",
}


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.main, self.side = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x, gate):
        return self.main(x) + gate * self.side(x)


def build(fixed: bool = False):
    torch.manual_seed(650)
    net = Gated()
    least = 1e-8 if fixed else 0.0

    @torch.no_grad()
    def update(p):
        p.sub_(0.05 * p.grad / p.grad.norm().clamp(min=least))  # ORIGIN
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    gen = torch.Generator().manual_seed(750)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        gate = 0.0 if i == 2 else 1.0
        loss = nn.functional.mse_loss(net(x, gate), x[:, :4])
        loss.backward()
        return loss

    return net, step
