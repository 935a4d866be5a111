"""Double-exponential synapse normalised to its peak, with rise and decay equal: the alpha function t / tau e^(1 - t / tau)."""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1210537996,
    "fix": "quotients phi((b - a) t) and log1p(u) / u with their series",
}


def expansion(x, closed, *coefficients):
    near = x.abs() < 1e-2
    safe = torch.where(near, torch.ones_like(x), x)
    return torch.where(near, sum(c * x**k for k, c in enumerate(coefficients)), closed(safe))


def synapse(t, tau_rise, tau_decay, fixed):
    if fixed:
        slow, gap = 1 / tau_decay, 1 / tau_rise - 1 / tau_decay
        phi = lambda x: expansion(x, lambda y: -torch.expm1(-y) / y, 1, -1 / 2, 1 / 6, -1 / 24)
        peak = tau_decay * expansion(gap / slow, lambda y: torch.log1p(y) / y, 1, -1 / 2, 1 / 3, -1 / 4)
        kernel = lambda s: s * torch.exp(-slow * s) * phi(gap * s)
        return kernel(t) / kernel(peak)
    t_peak = tau_decay * tau_rise / (tau_decay - tau_rise)  # ORIGIN
    t_peak = t_peak * torch.log(tau_decay / tau_rise)
    norm = torch.exp(-t_peak / tau_decay) - torch.exp(-t_peak / tau_rise)
    return (torch.exp(-t / tau_decay) - torch.exp(-t / tau_rise)) / norm


class Conductance(nn.Module):
    def __init__(self):
        super().__init__()
        self.tau_rise = nn.Parameter(torch.tensor([[2.0], [0.5]]))
        self.tau_decay = nn.Parameter(torch.tensor([[2.0], [3.0]]))
        self.g_max = nn.Parameter(torch.tensor([[1.2], [0.7]]))
        self.register_buffer("t", torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0]))
        self.register_buffer("recorded", torch.tensor([[0.4, 0.8, 1.1, 0.9, 0.3], [0.5, 0.6, 0.6, 0.3, 0.1]]))

    def forward(self, fixed):
        g = self.g_max * synapse(self.t, self.tau_rise, self.tau_decay, fixed)
        return F.mse_loss(g, self.recorded, reduction="sum")


def build(fixed: bool = False):
    net = Conductance()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def integral(f):
    """over [0, 1], 60 nodes of Gauss and Legendre"""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    return sum(w / 2 * f((1 + x) / 2) for x, w in zip(nodes.tolist(), weights.tolist()))


def exact(tau_rise, tau_decay, g_max, t, recorded):
    a, gap = 1 / tau_decay, 1 / tau_rise - 1 / tau_decay
    kernel = lambda s: s * integral(lambda u: torch.exp(-(a + gap * u) * s))  # (e^-as - e^-bs) / (b - a)
    peak = integral(lambda u: 1 / (a + gap * u))  # log(b / a) / (b - a)
    return ((g_max * kernel(t) / kernel(peak) - recorded) ** 2).sum()


def truth():
    net = Conductance().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
