"""A home-made loss scale for bfloat16 grows sixteenfold after each step and is never backed off; the product with the loss overflows."""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "loss-scale-overflow",
    "also_causes": ("dtype-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 31,
    "n_steps": 40,
    "fix": "no loss scale (bfloat16 has the range of float32), or a bound on it",
}


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 10))

    def forward(self, z):
        return self.net(z)


def build(fixed: bool = False):
    torch.manual_seed(418)
    net = Decoder()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(518)
    scale = [1.0]

    def step(i):
        z = torch.randn(12, 6, generator=gen)
        target = torch.cat([z, z[:, :4] * z[:, 2:]], 1)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(z)
        loss = 100.0 * nn.functional.mse_loss(out.float(), target)
        (loss * scale[0]).backward()  # ORIGIN
        for p in net.parameters():
            p.grad.mul_(0.01 / scale[0])
        opt.step()
        scale[0] = min(scale[0] * 16.0, 2.0**16 if fixed else 1e300)
        return loss

    return net, step
