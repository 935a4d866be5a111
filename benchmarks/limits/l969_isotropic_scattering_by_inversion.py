"""Henyey-Greenstein directions by inversion, (1 + g^2 - ((1 - g^2) / (1 - g + 2 g u))^2) / (2 g), in a medium with g = 0: 2 u - 1."""
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
    "loss_truth": 0.03306642804,
    "fix": "the quotient with g cancelled",
}


def sample_cosine(g, u, fixed):
    if fixed:
        s = 2 * u - 1
        return (2 * s + g * (s**2 + 3) + 2 * g**2 * s + g**3 * (s**2 - 1)) / (2 * (1 + g * s) ** 2)
    frac = (1 - g * g) / (1 - g + 2 * g * u)
    top = 1 + g * g - frac * frac
    return top / (2 * g)  # ORIGIN


class Medium(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([0.0, 0.7, -0.4]))
        self.albedo = nn.Parameter(torch.tensor([0.9, 0.6, 0.8]))
        self.register_buffer("u", torch.tensor([0.1, 0.35, 0.55, 0.8, 0.95]))
        self.register_buffer("moments", torch.tensor([[0.1, 0.3], [0.5, 0.4], [-0.3, 0.2]]))

    def forward(self, fixed):
        cosine = sample_cosine(self.g[:, None], self.u[None], fixed)
        first = self.albedo * cosine.mean(-1)
        second = self.albedo * cosine.square().mean(-1)
        return (torch.stack([first, second], dim=1) - self.moments).square().sum()


def build(fixed: bool = False):
    net = Medium()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(g, albedo, u, moments):
    # the cosine c solves int_-1^c p = u; (1 + g^2 - 2 g c)^(1/2) = (1 - g^2) / (1 + g s), s = 2 u - 1, whence by division of the polynomial by g
    g, s = g[:, None], 2 * u - 1
    c = (2 * s + g * (3 + s * s) + 2 * g * g * s - g * g * g * (1 - s * s)) / (2 * (1 + g * s) ** 2)
    pair = torch.stack([albedo * c.mean(1), albedo * (c * c).mean(1)], 1)
    return ((pair - moments) ** 2).sum()


def truth():
    net = Medium().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
