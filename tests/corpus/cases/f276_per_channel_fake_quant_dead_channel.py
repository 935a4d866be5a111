"""Per-channel int8 fake quantisation divides by the channel's largest magnitude; pruning zeroed a channel."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "clamp the scale",
}


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class QLinear(nn.Linear):
    floor = 0.0

    def forward(self, x):
        scale = self.weight.detach().abs().amax(1, keepdim=True).clamp(min=self.floor) / 127
        w = Round.apply(self.weight / scale) * scale  # ORIGIN
        return F.linear(x, w, self.bias)


def prune(layer, channel):
    with torch.no_grad():
        layer.weight[channel] = 0


def build(fixed: bool = False):
    torch.manual_seed(1012)
    net = nn.Sequential(QLinear(6, 10), nn.ReLU(), QLinear(10, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1017)
    for layer in (net[0], net[2]):
        layer.floor = 1e-8 if fixed else 0.0

    def step(i):
        opt.zero_grad()
        if i == 2:
            prune(net[0], 3)
        x = torch.randn(8, 6, generator=gen)
        loss = F.cross_entropy(net(x), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
