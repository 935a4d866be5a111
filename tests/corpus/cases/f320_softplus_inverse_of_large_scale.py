"""Residual scales in the space before the softplus: log(expm1(y)) overflows for the first large empirical scale."""
import torch
from torch import nn

META = {
    "origin_op": "expm1",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "y + log(-expm1(-y))",
}


def softplus_inverse(y, stable):
    if stable:
        return y + torch.log(-torch.expm1(-y))
    return torch.log(torch.expm1(y))  # ORIGIN


class VAE(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable
        self.enc = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 8))
        self.dec = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 11))

    def forward(self, x):
        scale = x.std(1, keepdim=True)
        mu, logvar = self.enc(x / scale).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        mean, raw = self.dec(z).split([10, 1], -1)
        sigma = nn.functional.softplus(raw + softplus_inverse(scale, self.stable))
        nll = 0.5 * ((x - mean * scale) / sigma) ** 2 + sigma.log()
        kl = 0.5 * (mu**2 + logvar.exp() - 1 - logvar)
        return nll.sum(1).mean() + kl.sum(1).mean()


def build(fixed: bool = False):
    torch.manual_seed(121)
    net = VAE(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(122)

    def step(i):
        x = torch.randn(16, 10, generator=gen) * 3
        if i == 3:
            x[6] *= 80.0
        opt.zero_grad()
        loss = net(x)
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
