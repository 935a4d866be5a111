"""GroupNorm with eps=0 on images: a blank image has variance zero in every group."""

import torch
from torch import nn

META = {
    "origin_op": "native_group_norm",
    "also_ops": ("group_norm",),
    "phase": "forward",
    "cause": "std-of-constant",
    "also_causes": ("div-by-zero", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "eps=1e-5",
}


class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 8, eps=eps)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = self.conv(x)
        h = torch.relu(self.norm(h))  # ORIGIN
        return self.head(h.mean((2, 3)))


def build(fixed: bool = False):
    torch.manual_seed(603)
    net = Net(1e-5 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    gen = torch.Generator().manual_seed(703)

    def step(i):
        x = torch.randn(8, 1, 6, 6, generator=gen)
        if i >= 3:
            x[2] = 0.0
        y = torch.randint(0, 2, (8,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
