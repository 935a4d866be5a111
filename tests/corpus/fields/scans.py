"""State-space layers and gated recurrences."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("where-grad-trap", "exp", "forward", step=0, also=("exp-overflow", "zero-times-inf"), ops=("mul",))
def masked_segment_sums(fixed):
    torch.manual_seed(0)
    decay = nn.Parameter(torch.full((40,), 4.0))
    x = torch.randn(40)

    def loss(i):
        total = torch.cumsum(-decay, 0)
        segment = total[:, None] - total[None]
        keep = torch.ones(40, 40, dtype=torch.bool).tril()
        if fixed:
            segment = segment.masked_fill(~keep, -torch.inf)
        mixed = torch.where(keep, torch.exp(segment), 0.0)  # ORIGIN
        return (mixed @ x).square().mean()

    return None, train([decay], loss)


@fault("div-by-zero", "div", step=0, ops=("reciprocal",))
def bilinear_transform_on_its_pole(fixed):
    torch.manual_seed(1)
    a = nn.Parameter(torch.tensor([-1.0, -0.5, 4.0]))
    dt = 0.5 if not fixed else 0.4

    def loss(i):
        discrete = (1 + dt / 2 * a) / (1 - dt / 2 * a)  # ORIGIN
        return torch.tanh(discrete).square().sum()

    return None, train([a], loss)


@fault("log-of-zero", "log", step=2)
def log_of_one_minus_a_gate(fixed):
    torch.manual_seed(2)
    net = nn.Linear(4, 4)
    gen = torch.Generator().manual_seed(3)

    def loss(i):
        x = torch.randn(8, 4, generator=gen)
        if i == 2:
            x[0] = 60.0
        z = net(x)
        z = z.abs()
        keep = F.logsigmoid(-z) if fixed else torch.log(1 - torch.sigmoid(z))  # ORIGIN
        return keep.mean().square()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=1)
def exponential_gate_without_a_stabiliser(fixed):
    torch.manual_seed(4)
    net = nn.Linear(3, 2)
    gen = torch.Generator().manual_seed(5)

    def loss(i):
        x = torch.randn(2, 10, 3, generator=gen) * (300.0 if i == 1 else 1.0)
        gates = net(x)
        state = norm = torch.zeros(2)
        level = torch.full((2,), -torch.inf)
        for t in range(10):
            high = gates[:, t, 0]
            if fixed:
                new = torch.maximum(level - 1, high)
                old, entry = torch.exp(level - 1 - new), torch.exp(high - new)
                level = new
            else:
                old, entry = math.exp(-1), torch.exp(high)  # ORIGIN
            state = old * state + entry * torch.tanh(gates[:, t, 1])
            norm = old * norm + entry
        return (state / norm).square().mean()

    return net, train(net.parameters(), loss)
