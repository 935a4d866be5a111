"""A layer norm by E[x^2] - E[x]^2 in float16: cancellation leaves a variance of zero, and the cube of 1 / sqrt(1e-5) overflows."""

import torch
from torch import nn

META = {
    "origin_op": "rsqrt",
    "phase": "backward",
    "cause": "dtype-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "also_causes": ["std-of-constant", "div-by-tiny"],
    "fix": "subtract the mean first, in float32",
}


class LayerNorm(nn.Module):
    def __init__(self, dim, wide):
        super().__init__()
        self.wide = wide
        self.gain, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = x.float() if self.wide else x
        mean = h.mean(-1, keepdim=True)
        if self.wide:
            var = (h - mean).pow(2).mean(-1, keepdim=True)
        else:
            var = (h * h).mean(-1, keepdim=True) - mean * mean
        out = (h - mean) * torch.rsqrt(var + 1e-5)  # ORIGIN
        return self.gain * out.to(x.dtype) + self.bias


class Net(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(6, 16, bias=False), LayerNorm(16, wide), nn.Linear(16, 3)

    def forward(self, x, offset):
        return self.out(torch.relu(self.norm(self.inp(x) + offset)))


def build(fixed: bool = False):
    torch.manual_seed(911)
    net = Net(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(912)

    def step(i):
        x = torch.randn(16, 6, generator=gen).half()
        offset = torch.zeros(16, 1)
        if i >= 3:
            x[::2] *= 0.01  # quiet rows in a residual stream that has drifted
            offset[::2] = 60.0
        y = torch.randint(0, 3, (16,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, offset.half()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
