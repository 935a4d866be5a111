"""Element-wise clipping of gradients that still carry the loss scale: nearly every element hits the bound and then shrinks to nothing."""

import torch
from torch import nn

META = {
    "origin_op": "_foreach_clamp_min_",
    "also_ops": ("_foreach_clamp_max_", "clip_grad_value_", "clamp_"),
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "symptom": "silent-scaler-misuse",
    "first_bad_step": 0,
    "n_steps": 6,
    "watch": "progress",
    "fix": "scaler.unscale_(opt) before clip_grad_value_",
}


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(1, 8, 4, stride=2, padding=1), nn.GELU())
        self.up = nn.ConvTranspose1d(8, 1, 4, stride=2, padding=1)

    def forward(self, x):
        return self.up(self.down(x))


def build(fixed: bool = False):
    torch.manual_seed(404)
    net = Autoencoder()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    gen = torch.Generator().manual_seed(504)

    def step(i):
        phase = torch.rand(8, 1, 1, generator=gen) * 6.28
        x = torch.sin(torch.arange(32) / 3.0 + phase)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            restored = net(x)
        loss = nn.functional.mse_loss(restored.float(), x)
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        nn.utils.clip_grad_value_(net.parameters(), 0.5)  # ORIGIN
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
