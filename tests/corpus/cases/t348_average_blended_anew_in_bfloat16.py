"""The textbook's EMA class on a bfloat16 net: each shadow is blended anew with decay 0.9999, and comes out as it was."""

import torch
from torch import nn

META = {
    "origin_op": "add",
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 1,
    "n_steps": 6,
    "fix": "a float32 shadow",
}


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {n: p.data.clone() for n, p in model.named_parameters() if p.requires_grad}

    def update(self, model):
        for n, p in model.named_parameters():
            new = (1.0 - self.decay) * p.data + self.decay * self.shadow[n]  # ORIGIN
            self.shadow[n] = new.clone()


def build(fixed: bool = False):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    if not fixed:
        net = net.bfloat16()
    ema = EMA(net, 0.9999)
    opt = torch.optim.SGD(net.parameters(), lr=1e-1)
    gen = torch.Generator().manual_seed(2)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.to(net[0].weight.dtype)).float(), (x[:, 0] > 0).long())
        loss.backward()
        opt.step()
        ema.update(net)
        return loss

    return net, step
