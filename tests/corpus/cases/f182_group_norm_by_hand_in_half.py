"""A weight-standardising layer in half computes rsqrt(var + eps) with eps = 1e-8 from its config; a zero filter has variance zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "rsqrt",
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("div-by-zero", "std-of-constant"),
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "eps = 1e-4",
}


class WsLinear(nn.Module):
    def __init__(self, cin, cout, config):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin) / cin**0.5)
        self.eps = config["eps"]

    def forward(self, x):
        w = self.weight - self.weight.mean(1, keepdim=True)
        var = w.square().mean(1, keepdim=True)
        scale = torch.rsqrt(var + self.eps)  # ORIGIN
        return x @ (w * scale).t()


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.a, self.b = WsLinear(6, 16, config), WsLinear(16, 3, config)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def build(fixed: bool = False):
    torch.manual_seed(326)
    net = Net({"eps": 1e-2 if fixed else 1e-8}).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(826)

    def step(i):
        opt.zero_grad()
        if i == 1:
            net.a.weight.data[4] = 0.0
        x = torch.randn(8, 6, generator=gen).half()
        loss = F.cross_entropy(net(x).float(), torch.arange(8) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
