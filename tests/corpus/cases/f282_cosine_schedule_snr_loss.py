"""Min-SNR weighting of a diffusion loss: the noise at the last step is exactly one, its SNR zero, and the weight
divides by it.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "end before the signal is gone",
}


class MinSNR(nn.Module):
    def __init__(self, steps, last):
        super().__init__()
        ab = torch.cos(torch.linspace(0.05, last, steps)) ** 2
        self.register_buffer("alpha_bar", ab.where(ab > 1e-12, 0.0))

    def weight(self, t):
        snr = self.alpha_bar[t] / (1 - self.alpha_bar[t])
        return torch.minimum(snr, torch.tensor(5.0)) / snr  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2621)
    net = nn.Linear(4, 4)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2626)
    schedule = MinSNR(10, 1.5 if fixed else torch.pi / 2)

    def step(i):
        opt.zero_grad()
        x, t = torch.randn(6, 4, generator=gen), torch.randint(0, 9, (6,), generator=gen)
        if i == 2:
            t[3] = 9
        noise = torch.randn(6, 4, generator=gen)
        a = schedule.alpha_bar[t][:, None]
        loss = (schedule.weight(t) * (net(a.sqrt() * x + (1 - a).sqrt() * noise) - noise).square().mean(1)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
