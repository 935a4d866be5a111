"""A spiking neuron's surrogate gradient 1 / (1 + exp(-beta |v|))^2 was written with the other sign: exp overflows."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "also_ops": ("spike", "div", "pow"),
    "phase": "backward",
    "cause": "custom-backward",
    "also_causes": ("exp-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "the exponent is negative",
}


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, beta, sign):
        ctx.save_for_backward(v)
        ctx.beta, ctx.sign = beta, sign
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        e = torch.exp(ctx.sign * ctx.beta * v.abs())  # ALSO
        return grad * e / (1 + e) ** 2, None, None  # ALSO


class LIF(nn.Module):
    def __init__(self, sign):
        super().__init__()
        self.inp, self.out, self.sign = nn.Linear(4, 12), nn.Linear(12, 2), sign

    def forward(self, spikes):
        v, total = torch.zeros(spikes.shape[0], 12), 0.0
        for x in spikes.unbind(1):
            v = 0.9 * v + self.inp(x)
            s = Spike.apply(v - 1.0, 10.0, self.sign)  # ORIGIN
            v = v - s.detach()
            total = total + self.out(s)
        return total


def build(fixed: bool = False):
    torch.manual_seed(1328)
    net = LIF(-1.0 if fixed else 1.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1333)

    def step(i):
        opt.zero_grad()
        x = (torch.rand(4, 5, 4, generator=gen) > 0.5).float()
        if i == 2:
            x[2] *= 60
        loss = F.cross_entropy(net(x), torch.arange(4) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
