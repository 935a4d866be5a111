"""A fixed-point layer accelerated by Aitken's formula: on an easy input the iteration has converged, both differences are zero."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "accelerate only where the second difference is not zero",
}


class Equilibrium(nn.Module):
    def __init__(self, dim, guard):
        super().__init__()
        self.guard = guard
        self.w = nn.Parameter(0.1 * torch.randn(dim, dim))
        self.u = nn.Linear(5, dim, bias=False)
        self.out = nn.Linear(dim, 2)

    def forward(self, x, sweeps=3):
        inject = self.u(x)
        z = torch.zeros_like(inject)
        for _ in range(sweeps):
            z1 = torch.tanh(z @ self.w + inject)
            z2 = torch.tanh(z1 @ self.w + inject)
            first, second = z1 - z, (z2 - z1) - (z1 - z)
            if self.guard:
                done = second.abs() < 1e-6
                z = torch.where(done, z2, z - first**2 / second.masked_fill(done, 1.0))
            else:
                z = z - first**2 / second  # ORIGIN
            z = z.clamp(-1, 1)
        return self.out(z)


def build(fixed: bool = False):
    torch.manual_seed(351)
    net = Equilibrium(8, fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(352)

    def step(i):
        x = torch.randn(6, 5, generator=gen)
        if i == 3:
            x[4] = 0.0
        y = torch.randint(0, 2, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, 1 if i < 3 else 2), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
