"""Diffusion schedule cast to half with the model: alpha_bar of the first steps rounds to 1 and the SNR divides by 1 - alpha_bar = 0."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("dtype-underflow", "eps-underflow"),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 6,
    "fix": "schedule in float32",
}


class Diffuser(nn.Module):
    def __init__(self):
        super().__init__()
        betas = torch.linspace(1e-4, 0.02, 50)
        self.register_buffer("alpha_bar", torch.cumprod(1 - betas, 0))
        self.net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))

    def forward(self, x, t):
        a = self.alpha_bar[t][:, None]
        eps = torch.randn_like(x)
        noisy = a.sqrt() * x + (1 - a).sqrt() * eps
        pred = self.net(torch.cat([noisy, t[:, None].to(x.dtype) / 50], 1))
        snr = a / (1 - a)  # ORIGIN
        return (snr * (pred - eps).pow(2)).float().mean()


def build(fixed: bool = False):
    torch.manual_seed(102)
    net = Diffuser().bfloat16()
    if fixed:
        net = net.float()
        net.alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(103)

    def step(i):
        x = torch.randn(8, 8, generator=gen)
        t = torch.randint(20, 50, (8,), generator=gen)
        if i == 2:
            t[6] = 0
        loss = net(x if fixed else x.bfloat16(), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
