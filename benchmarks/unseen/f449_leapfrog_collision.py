"""Orbit fitting: two bodies at the same place have a squared distance of zero, to the power of minus three halves."""
import torch
from torch import nn

META = {
    "origin_op": "pow", "phase": "forward", "cause": "pow-fraction-at-zero", "symptom": "loss-nan",
    "also_causes": ["div-by-zero"], "first_bad_step": 2, "n_steps": 4, "fix": "a softening length",
}


def acceleration(x, mass, soft):
    d = x[:, None] - x[None]
    r2 = (d**2).sum(-1) + soft**2
    pull = mass * r2.pow(-1.5)  # ORIGIN
    off = ~torch.eye(len(x), dtype=torch.bool)
    return -(torch.where(off, pull, torch.zeros(()))[..., None] * d).sum(1)


class NBody(nn.Module):
    def __init__(self, n, soft):
        super().__init__()
        self.log_mass = nn.Parameter(torch.zeros(n))
        self.soft = soft

    def forward(self, x, v, dt=0.02, n=3):
        for _ in range(n):
            v = v + 0.5 * dt * acceleration(x, self.log_mass.exp(), self.soft)
            x = x + dt * v
            v = v + 0.5 * dt * acceleration(x, self.log_mass.exp(), self.soft)
        return x


def build(fixed=False):
    torch.manual_seed(99)
    net = NBody(4, 0.05)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(100)

    def step(i):
        x, v = torch.randn(4, 3, generator=gen), 0.1 * torch.randn(4, 3, generator=gen)
        if i == 2:
            x[1] = x[0]  # a duplicated catalogue entry
            net.soft = 0.05 if fixed else 0.0  # "physical" from here on
        loss = (net(x, v) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
