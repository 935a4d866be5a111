"""A state-space scan as exp(c) * cumsum(x exp(-c)): on a long sequence exp(-c) overflows while exp(c) underflows."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "scan in short chunks",
}


class Scan(nn.Module):
    def __init__(self, dim, chunk):
        super().__init__()
        self.chunk = chunk
        self.delta, self.inp, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 2)
        self.log_a = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        dt = nn.functional.softplus(self.delta(x))
        decay, u = -dt * self.log_a.exp(), self.inp(x)
        state, outs = torch.zeros_like(x[:, 0]), []
        for s in range(0, x.shape[1], self.chunk):
            c = decay[:, s : s + self.chunk].cumsum(1)
            grow = torch.exp(-c)  # ORIGIN
            h = torch.exp(c) * (state.unsqueeze(1) + (u[:, s : s + self.chunk] * grow).cumsum(1))
            state = h[:, -1]
            outs.append(h)
        return self.out(torch.cat(outs, 1).mean(1))


def build(fixed: bool = False):
    torch.manual_seed(761)
    net = Scan(6, 16 if fixed else 1000)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(762)

    def step(i):
        n = [40, 60, 50, 40, 200, 40][i]
        x = torch.randn(4, n, 6, generator=gen)
        y = torch.randint(0, 2, (4,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
