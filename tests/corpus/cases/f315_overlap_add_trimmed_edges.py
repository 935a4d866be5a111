"""Overlap-add divides by the window sum, which is zero at the edge; the edge is trimmed from the loss, but 0/0 has a gradient."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "clamp the window sum",
    "also_causes": ["div-by-zero"],
}


class Vocoder(nn.Module):
    def __init__(self, floor, n=16):
        super().__init__()
        self.n, self.floor = n, floor
        self.register_buffer("window", torch.hann_window(n))
        self.net = nn.Sequential(nn.Linear(n, 24), nn.Tanh(), nn.Linear(24, n))

    def synth(self, frames, trim):
        b, t, n = frames.shape
        hop, size = n // 2, (t - 1) * n // 2 + n
        fold = {"output_size": (1, size), "kernel_size": (1, n), "stride": (1, hop)}
        y = nn.functional.fold((frames * self.window).transpose(1, 2), **fold).view(b, size)
        norm = nn.functional.fold((self.window**2).view(1, n, 1).expand(b, n, t), **fold).view(b, size)
        y = y / norm.clamp_min(self.floor)  # ORIGIN
        return y[:, trim:-trim] if trim else y[:, hop:-hop]

    def forward(self, x, trim):
        return self.synth(self.net(x.unfold(-1, self.n, self.n // 2)), trim)


def build(fixed: bool = False):
    torch.manual_seed(821)
    net = Vocoder(1e-8 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(822)

    def step(i):
        x = torch.randn(3, 80, generator=gen)
        opt.zero_grad()
        out = net(x, 4)
        loss = nn.functional.l1_loss(out, x[:, 4:-4])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
