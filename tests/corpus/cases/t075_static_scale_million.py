"""A static loss scale of 2**22 with float16 autocast: the scaled gradient does not fit when it is cast back to half."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "_to_copy",
    "also_ops": ("mul", "div", "to", "nll_loss", "_log_softmax", "mm"),
    "phase": "backward",
    "cause": "loss-scale-overflow",
    "also_causes": ("dtype-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "a scale of 2**8",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.b(F.silu(self.a(x)))


def build(fixed: bool = False):
    torch.manual_seed(302)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(802)
    scale = 2.0**8 if fixed else 2.0**22

    def step(i):
        x = torch.randn(8, 10, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.cross_entropy(out.float(), torch.arange(8) % 4)  # ORIGIN
        (loss * scale).backward()  # ALSO
        for p in net.parameters():
            p.grad /= scale
        opt.step()
        return loss

    return net, step
