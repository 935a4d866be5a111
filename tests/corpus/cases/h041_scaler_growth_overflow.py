"""The scale grows until one step overflows and is skipped."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "the scale grows until one step overflows and is skipped",
    "skipped_steps": (7,),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.seq(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(305)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(805)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=1)

    def step(i):
        x = torch.randn(16, 5, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.l1_loss(out.float(), x[:, 0] * 3)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
