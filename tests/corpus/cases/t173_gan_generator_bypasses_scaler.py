"""GAN under AMP: the discriminator steps through the scaler, the generator's optimizer is stepped directly on scaled gradients."""
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

META = {
    "origin_op": "_foreach_add_",
    "also_ops": ("add_", "step"),
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "also_causes": ("learning-rate",),
    "oracle": "drift",
    "symptom": "grad-inf",
    "first_bad_step": 1,
    "n_steps": 6,
    "fix": "scaler.step(opt_g)",
}


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 6))
        self.disc = nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def build(fixed: bool = False):
    torch.manual_seed(52)
    gan = GAN()
    opt_d = torch.optim.SGD(gan.disc.parameters(), lr=0.02)
    opt_g = torch.optim.SGD(gan.gen.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    gen = torch.Generator().manual_seed(53)

    def step(i):
        real = torch.randn(16, 6, generator=gen) + 2.0
        z = torch.randn(16, 4, generator=gen)
        opt_d.zero_grad()
        with torch.autocast("cpu", torch.float16):
            fake = gan.gen(z)
            real_logit, fake_logit = gan.disc(real), gan.disc(fake.detach())  # FIRST
        d_loss = bce(real_logit.float(), torch.ones(16, 1)) + bce(fake_logit.float(), torch.zeros(16, 1))
        scaler.scale(d_loss).backward()
        scaler.step(opt_d)
        opt_g.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logit = gan.disc(gan.gen(z))
        g_loss = bce(logit.float(), torch.ones(16, 1))
        scaler.scale(g_loss).backward()
        if fixed:
            scaler.step(opt_g)
        else:
            opt_g.step()  # ORIGIN
        scaler.update()
        return d_loss.detach() + g_loss.detach()

    return gan, step
