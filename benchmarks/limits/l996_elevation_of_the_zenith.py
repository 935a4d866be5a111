"""Elevation angles asin(z) of satellites, one of them at z = 1, the zenith: the slope there is infinite, and it is to come down."""
import torch
from torch import nn

META = {
    "origin_op": "asin",
    "phase": "backward",
    "cause": "asin-at-one",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 1.213261561,
    "fix": "asin of a number kept 2e-7 below 1 without losing its gradient",
}


class Elevation(nn.Module):
    def __init__(self):
        super().__init__()
        self.height = nn.Parameter(torch.tensor([1.0, 0.6, -0.2]))
        self.bias = nn.Parameter(torch.tensor(0.05))
        self.register_buffer("measured", torch.tensor([[1.1, 0.6, -0.1], [1.2, 0.7, -0.3]]))
        self.register_buffer("sigma", torch.tensor([0.2, 0.1, 0.1]))

    def angle(self, fixed):
        if fixed:
            return torch.asin(self.height * (1 - 2e-7))
        z = self.height.clamp(-1.0, 1.0)
        return torch.asin(z)  # ORIGIN

    def forward(self, fixed):
        residual = (self.angle(fixed) + self.bias - self.measured) / self.sigma
        return 0.5 * residual.square().mean()


def build(fixed: bool = False):
    net = Elevation()
    opt = torch.optim.SGD(net.parameters(), lr=1e-7)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(height, bias, measured, sigma):
    angle = torch.atan2(height, torch.stack([height[0] * 0, *(1 - height[1:] ** 2) ** 0.5]))  # asin z
    return (((angle + bias - measured) / sigma) ** 2).mean() / 2


def limits(grads):
    grads["height"][0] = float("inf")  # the angle, pi / 2 + 0.05, is larger than what was measured
    return grads


def truth():
    net = Elevation().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return limits(grads)
