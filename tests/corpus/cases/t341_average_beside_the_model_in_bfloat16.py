"""An EMA of the weights with decay 0.9999 kept in bfloat16, beside the model, written as mul then add: neither changes a bit of most weights, the average stays put.

Source: d8ahazard/sd_dreambooth_extension#1417
"""
import copy

import torch
from torch import nn

META = {
    "origin_op": "mul_",
    "also_ops": ("add_",),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 6,
    "fix": "EMA in float32",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 24)
        self.b = nn.Linear(24, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


@torch.no_grad()
def update_ema(ema, net, decay):
    for e, p in zip(ema.parameters(), net.parameters(), strict=True):
        e.mul_(decay)  # ORIGIN
        e.add_(p.to(e.dtype), alpha=1 - decay)  # ALSO


def build(fixed: bool = False):
    torch.manual_seed(370)
    net = Net()
    ema = copy.deepcopy(net)
    ema = ema if fixed else ema.to(torch.bfloat16)
    for p in ema.parameters():
        p.requires_grad_(False)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(371)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        y = (x[:, 0] > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        update_ema(ema, net, 0.9999)
        return loss

    return net, step
