"""Variance as E[x^2] - E[x]^2 in half: a batch with a large mean cancels to a negative number, whose root is NaN.

Source: GroupNorm / instance norm kernels that accumulate the two moments in float16
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "also_ops": ("sub", "rsqrt"),
    "phase": "forward",
    "cause": "sqrt-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "two passes, in float32",
}


class ChannelNorm(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable

    def forward(self, x):
        if self.stable:
            h = x.float()
            mean = h.mean((2, 3), keepdim=True)
            std = ((h - mean) ** 2).mean((2, 3), keepdim=True).add(1e-3).sqrt()
            return ((h - mean) / std).to(x.dtype)
        mean = x.mean((2, 3), keepdim=True)
        var = (x * x).mean((2, 3), keepdim=True) - mean * mean  # ALSO
        return (x - mean) / torch.sqrt(var + 1e-3)  # ORIGIN


class Net(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.norm = ChannelNorm(stable)
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def forward(self, x):
        return self.net(self.norm(x)).mean((2, 3))


def build(fixed: bool = False):
    torch.manual_seed(368)
    net = Net(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(369)

    def step(i):
        x = torch.rand(8, 3, 9, 9, generator=gen)
        if i == 3:
            x = 60.0 + 0.1 * x  # over-exposed frames in raw counts
        y = torch.randint(0, 2, (8,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.half()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
