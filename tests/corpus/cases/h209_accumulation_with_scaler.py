"""Gradient accumulation under a GradScaler: unscale and clip once per step, after the fourth micro-batch."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "scaled gradients add up between the steps, which is what accumulation with a scaler looks like",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


def build(fixed: bool = False):
    torch.manual_seed(609)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    gen = torch.Generator().manual_seed(709)

    def step(i):
        opt.zero_grad()
        total = torch.zeros(())
        for _ in range(4):
            x = torch.randn(4, 7, 3, generator=gen)
            y = (x.sum((1, 2)) > 0).long()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = net(x)
            loss = nn.functional.cross_entropy(logits.float(), y) / 4
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return total

    return net, step
