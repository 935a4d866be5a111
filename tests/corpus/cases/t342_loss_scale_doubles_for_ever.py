"""A dynamic loss scale by hand that doubles every other step and never looks for infinities: the scaled half loss overflows.

Source: open-mmlab/mmcv#585 (dynamic loss scaling must skip and back off when gradients overflow)
"""
import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "loss-scale-overflow",
    "also_causes": ("dtype-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 8,
    "n_steps": 12,
    "fix": "scale the loss in float32 and cap or back off",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, x):
        return self.net(x)


class Scale:
    def __init__(self, start, cap):
        self.value, self.cap, self.good = start, cap, 0

    def tick(self):
        self.good += 1
        if self.good % 2 == 0:
            self.value = min(2 * self.value, self.cap)


def build(fixed: bool = False):
    torch.manual_seed(354)
    net = Net().half()
    master = [p.detach().clone().float() for p in net.parameters()]
    scale = Scale(4096.0, 2.0**12 if fixed else 2.0**30)
    gen = torch.Generator().manual_seed(355)

    def step(i):
        x = torch.randn(32, 8, generator=gen).half()
        y = torch.randint(0, 4, (32,), generator=gen)
        net.zero_grad()
        logp = net(x).log_softmax(-1)
        loss = -logp.gather(1, y[:, None]).mean()
        scaled = loss * scale.value  # ORIGIN
        scaled.backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), master, strict=True):
                m.sub_(p.grad.float() / scale.value, alpha=0.05)
                p.copy_(m)
        scale.tick()
        return loss

    return net, step
