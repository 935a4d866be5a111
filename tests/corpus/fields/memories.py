"""State-space layers, linear attention and gated memories."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("log-of-zero", "log", step=0)
def logarithm_of_a_silent_mode(fixed):
    """The powers of a complex diagonal by its logarithm; one mode begins at 0."""
    torch.manual_seed(0)
    start = torch.tensor([0.9, 0.5, 0.0 if not fixed else 0.1])
    real, imag = nn.Parameter(start), nn.Parameter(torch.tensor([0.1, 0.3, 0.0]))
    x = torch.randn(12)

    def kernel(length):
        log = torch.log(torch.complex(real, imag))  # ORIGIN
        return torch.exp(torch.arange(length)[:, None] * log).sum(-1).real

    def loss(i):
        y = F.conv1d(x.view(1, 1, -1), kernel(5).view(1, 1, -1))
        return (y - 1).square().mean()

    return None, train([real, imag], loss)


@fault("dtype-overflow", "cumsum", step=2, also=("inf-minus-inf",), ops=("sub",))
def segment_sums_of_half_decays(fixed):
    torch.manual_seed(1)
    gate = nn.Linear(4, 2)

    def decays(x, kept):
        log_a = -F.softplus(gate(x)) * 30
        sums = log_a.float().cumsum(0) if fixed else log_a.half().cumsum(0)  # ORIGIN
        pairs = sums[:, None] - sums[None]
        lower = torch.ones(len(x), len(x)).tril().bool()[..., None]
        return torch.exp(pairs.masked_fill(~lower, -torch.inf)).float().mean(1) @ kept

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(24, 4, generator=gen) * (400 if i == 2 else 0.1)
        return (decays(x, torch.ones(2)) - 0.1).square().mean()

    return gate, train(gate.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward", step=2, ops=("div", "mul"))
def input_scale_of_a_closed_gate(fixed):
    """sqrt(1 - a**2) of a real-gated unit, where a is exactly 1."""

    class RealGate(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.rate = nn.Parameter(torch.full((d,), 0.5))
            self.gate, self.proj = nn.Linear(d, d), nn.Linear(d, d)

        def forward(self, x):
            state, out = torch.zeros(x.shape[0], x.shape[2]), []
            for token in x.unbind(1):
                a = torch.exp(-8 * F.softplus(self.rate) * torch.sigmoid(self.gate(token)))
                left = 1 - a * a
                beta = torch.sqrt(left.clamp(min=1e-6)) if fixed else torch.sqrt(left)  # ORIGIN
                state = a * state + beta * self.proj(token)
                out.append(state)
            return torch.stack(out, 1)

    torch.manual_seed(2)
    cell = RealGate(3)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(2, 4, 3, generator=gen) * (200 if i == 2 else 1)
        return F.mse_loss(cell(x).tanh(), torch.zeros(2, 4, 3))

    return cell, train(cell.parameters(), loss)


@fault("pow-negative-base", "pow", "init", step=0, also=("poisoned-buffer",), building=True)
def length_scale_of_a_short_table(fixed):
    torch.manual_seed(3)

    class Rotary(nn.Module):
        def __init__(self, dim=4, length=6):
            super().__init__()
            base = (torch.arange(0, dim) - (0.0 if fixed else 1.2) + 0.4 * dim) / (1.4 * dim)
            base = base - (0 if fixed else 0.2)
            power = (torch.arange(length) - length // 2) / 5.0
            self.register_buffer("scale", base[None] ** power[:, None])  # ORIGIN
            self.q = nn.Linear(dim, dim)

        def forward(self, x):
            return self.q(x) * self.scale

    net, x = Rotary(), torch.randn(2, 6, 4)
    return net, train(net.parameters(), lambda i: net(x).square().mean())


@fault("log-of-negative", "log", step=1)
def recurrence_in_logarithms_of_signed_inputs(fixed):
    """The scan of h = f h + i x through logcumsumexp takes the logarithm of x."""
    torch.manual_seed(4)
    gates, value = nn.Linear(3, 3), nn.Linear(3, 3)
    value.bias.data.fill_(4.0)

    def scan(x):
        f = F.logsigmoid(gates(x)).cumsum(1)
        v = value(x)
        v = F.softplus(v) if fixed else v
        log_v = torch.log(v)  # ORIGIN
        return torch.exp(f + torch.logcumsumexp(log_v - f, 1))

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(2, 5, 3, generator=gen) * (6 if i == 1 else 0.3)
        return scan(x).mean()

    return nn.ModuleList([gates, value]), train([*gates.parameters(), *value.parameters()], loss)


@fault("absorbed-update", "add_", "forward", step=0, steps=8, ops=("add", "_foreach_add_", "copy_"))
def clock_of_a_simulator_in_half(fixed):
    """Time advances by a millisecond, and four seconds in half have no millisecond after them."""
    torch.manual_seed(5)

    class Drive(nn.Module):
        def __init__(self):
            super().__init__()
            dtype = torch.float32 if fixed else torch.float16
            self.register_buffer("time", torch.full((1,), 4.0, dtype=dtype))
            self.net = nn.Linear(1, 1)

        def forward(self):
            self.time.add_(1e-3)  # ORIGIN
            return self.net(torch.sin(self.time.float()))

    net = Drive()
    return net, train(net.parameters(), lambda i: (net() - 0.2).square().mean())
