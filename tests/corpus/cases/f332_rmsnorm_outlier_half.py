"""A hand-written RMSNorm in half: one channel of massive activation squares past 65504, rsqrt(inf) is 0 and the whole layer falls silent.

Source: pytorch/pytorch#133085, meta-llama/llama#1048 (RMSNorm has to square in float32); xlite-dev/LeetCUDA#335 (zero after dividing by infinity)
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "also_ops": ("mean", "mul"),
    "phase": "forward",
    "cause": "dtype-overflow",
    "also_causes": ("dtype-underflow",),
    "symptom": "silent-underflow",
    "first_bad_step": 3,
    "n_steps": 6,
    "watch": "grad:inp.weight",
    "fix": "square in float32",
}


class RMSNorm(nn.Module):
    def __init__(self, dim, wide):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.wide = wide

    def forward(self, x):
        h = x.float() if self.wide else x
        var = h.pow(2).mean(-1, keepdim=True)  # ORIGIN
        h = h * torch.rsqrt(var + 1e-6)
        return self.weight * h.to(x.dtype)


class Block(nn.Module):
    def __init__(self, wide, dim=16):
        super().__init__()
        self.inp = nn.Linear(6, dim)
        self.norm = RMSNorm(dim, wide)
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        return self.head(self.norm(self.inp(x)))


def build(fixed: bool = False):
    torch.manual_seed(334)
    net = Block(fixed)
    with torch.no_grad():
        net.inp.weight[4] = 60.0  # the channel that carries the offset, as in a pretrained checkpoint
        net.inp.bias[4] = 40.0
    net = net.half()
    opt = torch.optim.SGD(net.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(335)

    def step(i):
        x = torch.rand(10, 6, generator=gen) * 0.5
        if i >= 3:
            x = x + 1.5  # the sensor's offset drifts
        y = torch.randint(0, 3, (10,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.half()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
