"""Adversarial autoencoder, three optimizers in turn: the discriminator's sigmoid reaches 1 and log(1 - p) is -inf."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 7,
    "n_steps": 10,
    "fix": "binary cross-entropy on the logits",
}


class AAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))
        self.dec = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 10))
        self.dis = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))


def build(fixed: bool = False):
    torch.manual_seed(4)
    net = AAE()
    opt_ae = torch.optim.Adam([*net.enc.parameters(), *net.dec.parameters()], lr=1e-3)
    opt_d = torch.optim.Adam(net.dis.parameters(), lr=1e-3)
    opt_g = torch.optim.Adam(net.enc.parameters(), lr=5e-4)
    gen = torch.Generator().manual_seed(8)
    bce = nn.functional.binary_cross_entropy_with_logits

    def discriminator_loss(prior, code):
        if fixed:
            a, b = net.dis(prior), net.dis(code)
            return bce(a, torch.ones_like(a)) + bce(b, torch.zeros_like(b))
        p_real, p_fake = torch.sigmoid(net.dis(prior)), torch.sigmoid(net.dis(code))
        return -(torch.log(p_real).mean() + torch.log(1 - p_fake).mean())  # ORIGIN

    def reconstruct(x):
        opt_ae.zero_grad()
        loss = nn.functional.mse_loss(net.dec(net.enc(x)), x.clamp(-3, 3))
        loss.backward()
        opt_ae.step()
        return loss

    def step(i):
        x = torch.randn(16, 10, generator=gen)
        if i == 7:
            x = x * 400.0  # a batch in other units
        rec = reconstruct(x / 1.0)
        opt_d.zero_grad()
        d_loss = discriminator_loss(torch.randn(16, 2, generator=gen), net.enc(x).detach())
        d_loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        g_loss = nn.functional.softplus(-net.dis(net.enc(x))).mean()
        g_loss.backward()
        opt_g.step()
        return rec + d_loss.detach()

    return net, step
