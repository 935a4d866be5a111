"""A learned time origin in seconds since 1970 in float32: its ulp is 128 s, a step of 0.01 s never arrives."""
import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-zero-update",
    "first_bad_step": 0,
    "n_steps": 18,
    "watch": "update:origin",
    "fix": "learn the offset from a reference",
}


class Decay(nn.Module):
    def __init__(self, t0):
        super().__init__()
        self.origin = nn.Parameter(torch.tensor(t0))
        self.rate = nn.Parameter(torch.tensor(0.01))
        self.head = nn.Linear(1, 1)

    def forward(self, t):
        return self.head(torch.exp(-self.rate.abs() * (t - self.origin) / 100)[:, None])


def build(fixed: bool = False):
    torch.manual_seed(92)
    base = 0.0 if fixed else 1.7e9
    net = Decay(base)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(93)

    def step(i):
        t = base + 128.0 * torch.randint(1, 30, (32,), generator=gen)
        y = torch.exp(-(t - base) / 2000)[:, None]
        loss = nn.functional.mse_loss(net(t), y)
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
