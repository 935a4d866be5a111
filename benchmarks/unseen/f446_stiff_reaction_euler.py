"""A learned reaction rate integrated with explicit Euler: the temperature runs away and exp overflows."""
import torch
from torch import nn

META = {
    "origin_op": "exp", "phase": "forward", "cause": "exp-overflow", "symptom": "loss-inf",
    "first_bad_step": 3, "n_steps": 5, "fix": "bound the exponent",
}


class Reaction(nn.Module):
    def __init__(self, bounded):
        super().__init__()
        self.bounded = bounded
        self.k = nn.Parameter(torch.tensor(0.5))
        self.cool = nn.Parameter(torch.tensor(0.3))

    def rate(self, u):
        if self.bounded:
            u = 5 * torch.tanh(u / 5)
        return self.k * torch.exp(u)  # ORIGIN

    def forward(self, u, dt, n):
        trajectory = [u]
        for _ in range(n):
            u = u + dt * (self.rate(u) - self.cool * u)
            trajectory.append(u)
        return torch.stack(trajectory)


def build(fixed=False):
    torch.manual_seed(93)
    net = Reaction(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(94)

    def step(i):
        u0 = 0.1 * torch.randn(6, generator=gen) - 0.5
        if i >= 3:
            u0[2] = 3.0  # a hot start
        path = net(u0, 0.2, 6)
        loss = torch.log1p(path.abs()).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
