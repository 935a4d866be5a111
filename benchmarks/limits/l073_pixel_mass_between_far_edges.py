"""Discretised mixture of logistics (PixelCNN++): log(cdf(x + 1/255) - cdf(x - 1/255)) of a pixel far from a sharp component, where both are equal."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "plain",
    "loss_truth": 24.5221692,
    "fix": "log(sigmoid a - sigmoid b) = b + log(expm1(a - b)) - softplus(a) - softplus(b)",
}

PIXELS = [-0.2, 0.1, 0.9, 0.35]
MEANS, LOG_SCALES, WEIGHTS = [0.0, 0.2], [-4.2, -4.5], [0.3, -0.1]


class Logistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(MEANS))
        self.log_scale = nn.Parameter(torch.tensor(LOG_SCALES))
        self.weight = nn.Parameter(torch.tensor(WEIGHTS))

    def edges(self, x):
        centred, inv = x[:, None] - self.mean, torch.exp(-self.log_scale)
        return (centred + 1 / 255) * inv, (centred - 1 / 255) * inv

    def log_mass(self, plus, minus):
        mass = torch.sigmoid(plus) - torch.sigmoid(minus)
        return torch.log(mass)  # ORIGIN

    def forward(self, x):
        return torch.logsumexp(self.log_mass(*self.edges(x)) + self.weight.log_softmax(0), 1)


class LogisticsStable(Logistics):
    def log_mass(self, plus, minus):
        softplus = nn.functional.softplus
        return minus + torch.log(torch.expm1(plus - minus)) - softplus(plus) - softplus(minus)


def build(fixed: bool = False):
    net = LogisticsStable() if fixed else Logistics()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    x = torch.tensor(PIXELS)

    def step(i):
        opt.zero_grad()
        loss = -net(x).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    mean, log_scale, weight = leaf(MEANS), leaf(LOG_SCALES), leaf(WEIGHTS)
    gap = (torch.tensor(PIXELS, dtype=torch.float64)[:, None] - mean).abs()  # the mass is even in the gap
    s = torch.exp(-log_scale)
    a, b = (gap - 1 / 255) * s, (gap + 1 / 255) * s
    # 1 / (1 + e^a) - 1 / (1 + e^b)
    mass = (torch.exp(b) - torch.exp(a)) / ((1 + torch.exp(a)) * (1 + torch.exp(b)))
    loss = -torch.log((mass * torch.softmax(weight, 0)).sum(1)).mean()
    g = torch.autograd.grad(loss, [mean, log_scale, weight])
    return {"mean": g[0], "log_scale": g[1], "weight": g[2]}
