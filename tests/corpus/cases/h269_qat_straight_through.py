"""Quantisation-aware training to 3 bits with a straight-through estimator: many weights and activations round to zero, a bias whole."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "rounding to zero is what quantisation does",
}


class RoundSte(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


def fake_quant(x, step):
    return RoundSte.apply((x / step).clamp(-4, 3)) * step


class QLinear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(fake_quant(x, 0.5), fake_quant(self.weight, 0.25), fake_quant(self.bias, 1.0))


def build(fixed: bool = False):
    torch.manual_seed(1278)
    net = nn.Sequential(QLinear(8, 24), nn.ReLU(), QLinear(24, 3))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(1279)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = nn.functional.cross_entropy(out.float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
