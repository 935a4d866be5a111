"""AdamW on a half-precision net in which a ReLU layer has dead units: their gradients are zero, eps is zero in float16, and 0/0 is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("eps-underflow", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps=1e-4, or float32 master weights",
}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 32)
        self.outer = nn.Linear(32, 3)
        nn.init.constant_(self.inner.bias[:4], -30.0)  # units that never fire

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


def build(fixed: bool = False):
    torch.manual_seed(434)
    net = Mlp().half()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-4 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(534)

    def step(i):
        x = torch.randn(16, 8, generator=gen).half()
        y = torch.randint(0, 3, (16,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
