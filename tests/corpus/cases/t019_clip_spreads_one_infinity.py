"""One gate starts at exactly zero under a root, so its gradient is infinite; clip_grad_norm_ turns it into NaN and wipes out all the others."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "also_ops": ("_foreach_mul_",),
    "phase": "backward",
    "also_phase": "optimizer",
    "cause": "sqrt-at-zero",
    "also_causes": ("clip-nonfinite-norm",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "start the gate at a small positive value; error_if_nonfinite=True tells of such a norm",
}


class GatedResidual(nn.Module):
    def __init__(self, start, dim=16):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
        self.gate = nn.Parameter(torch.tensor(start))
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        strength = torch.sqrt(self.gate)  # ORIGIN
        return self.head(x + strength * self.inner(x))


def build(fixed: bool = False):
    torch.manual_seed(419)
    net = GatedResidual(0.01 if fixed else 0.0)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(519)

    def step(i):
        x = torch.randn(16, 16, generator=gen)
        y = torch.randint(0, 3, (16,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ALSO
        opt.step()
        return loss

    return net, step
