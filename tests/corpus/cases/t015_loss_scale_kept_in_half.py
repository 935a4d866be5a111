"""The loss scale 65536 is cast to the loss's own dtype; in float16 that is already infinite."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "forward",
    "cause": "loss-scale-overflow",
    "also_causes": ("dtype-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "cast the loss to float32 instead of the scale to float16",
}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(415)
    net = Regressor().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(515)
    loss_scale = torch.tensor(65536.0)

    def step(i):
        x = torch.randn(16, 8, generator=gen).half()
        opt.zero_grad()
        loss = (net(x) - x[:, :2]).square().mean()
        if fixed:
            loss = loss.float() / 64
        scaled = loss * loss_scale.to(loss.dtype)  # ORIGIN
        scaled.backward()
        for p in net.parameters():
            p.grad.div_(1024.0)
        opt.step()
        return loss

    return net, step
