"""With a zero-terminal-SNR schedule the last step is pure noise; recovering x0 from the predicted noise divides by sqrt(0)."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "predict v or x0 at the terminal step; here: bound the divisor",
}


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(2, 12, 3, padding=1)
        self.mid = nn.Sequential(nn.GroupNorm(3, 12), nn.SiLU(), nn.Conv1d(12, 12, 3, padding=1))
        self.out = nn.Conv1d(12, 1, 3, padding=1)

    def forward(self, x, level):
        h = self.inp(torch.cat([x, level.expand_as(x)], 1))
        h = h + checkpoint(self.mid, h, use_reentrant=False)
        return self.out(h)


def rescaled(steps):
    root = torch.linspace(0.99, 0.2, steps)
    return (root - root[-1]) * root[0] / (root[0] - root[-1])


def build(fixed: bool = False):
    torch.manual_seed(76)
    net = Denoiser()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(176)
    signal = rescaled(20)

    def step(i):
        t = torch.randint(0, 19, (6,), generator=gen)
        if i == 3:
            t[2] = 19
        a = signal[t].view(-1, 1, 1)
        s = (1 - a * a).sqrt()
        x0, noise = torch.randn(6, 1, 12, generator=gen), torch.randn(6, 1, 12, generator=gen)
        xt = a * x0 + s * noise
        divisor = a.clamp_min(0.05) if fixed else a
        opt.zero_grad()
        recovered = (xt - s * net(xt, s)) / divisor  # ORIGIN
        loss = nn.functional.l1_loss(recovered, x0)
        loss.backward()
        opt.step()
        return loss

    return net, step
