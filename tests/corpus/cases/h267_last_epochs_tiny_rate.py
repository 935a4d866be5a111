"""The tail of a step schedule: the rate falls by ten at each step down to 1e-10, where no float32 weight moves any more."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 12,
    "why": "the end of a schedule: the rate is meant to vanish",
}


def build(fixed: bool = False):
    torch.manual_seed(1274)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.1)
    gen = torch.Generator().manual_seed(1275)
    history = []

    def step(i):
        x = torch.randn(32, 6, generator=gen)
        y = x[:, :1] * x[:, 1:2]
        opt.zero_grad()
        loss = nn.functional.smooth_l1_loss(net(x), y)
        loss.backward()
        opt.step()
        sched.step()
        history.append(loss.item())
        return loss

    return net, step
