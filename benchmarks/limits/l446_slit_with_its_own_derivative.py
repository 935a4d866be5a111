"""Amplitude behind a slit, sin(u)/u with a derivative by hand, cos(u)/u - sin(u)/u^2; straight
ahead u is 0, and both are NaN where 1 and 0 are right.

Source: well-known fault (a removable singularity in a Function and again in its derivative)
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2823781,
    "fix": "torch.sinc(u / pi), and the series -u / 3 + u^3 / 30 near 0 for its derivative",
}
SEEN = [0.8, 0.5, 0.1]


class Amplitude(torch.autograd.Function):
    @staticmethod
    def forward(u):
        return torch.sin(u) / u  # ORIGIN

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad * (torch.cos(u) / u - torch.sin(u) / u**2)


class Slit(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))

    def forward(self, fixed=False):
        amplitude = torch.sinc(self.u / torch.pi) if fixed else Amplitude.apply(self.u)
        return (amplitude - torch.tensor(SEEN)).square().sum()


def build(fixed: bool = False):
    net = Slit()
    opt = torch.optim.SGD(net.parameters(), lr=1e-1)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    u, seen = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor(SEEN[1:])
    g = 2 * (u.sin() / u - seen) * (u.cos() / u - u.sin() / u**2)
    return {"u": torch.cat([torch.zeros(1), g])}
