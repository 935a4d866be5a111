"""A VAE in half whose KL weight is annealed from 1e-9: half times 1e-9 is zero, so the variance head never gets a gradient.

Source: kyegomez/SingLoRA#6 (ramp-up factors that vanish in low precision)
"""
import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "backward",
    "also_phase": "forward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "grad:logvar.weight",
    "fix": "the loss and its weights in float32",
}


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(10, 24)
        self.mu = nn.Linear(24, 4)
        self.logvar = nn.Linear(24, 4)
        self.dec = nn.Linear(4, 10)

    def forward(self, x):
        h = torch.tanh(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(mu), mu, logvar


def build(fixed: bool = False):
    torch.manual_seed(346)
    net = Vae().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(347)

    def step(i):
        x = torch.randn(16, 10, generator=gen).half()
        beta = 1e-9 * (i + 1) * (1e6 if fixed else 1.0)
        recon, mu, logvar = net(x)
        if fixed:
            recon, mu, logvar = recon.float(), mu.float(), logvar.float()
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        loss = nn.functional.mse_loss(recon, x.to(recon.dtype)) + beta * kl  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
