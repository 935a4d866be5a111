"""EDM preconditioning with the weight (s^2 + d^2) / (s d)^2: the second batch draws the last noise level of the schedule, s = 0.

Source: well-known fault (diffusion)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 3,
    "kind": "removable",
    "form": "module, later batch",
    "loss_truth": 0.9650645308,
    "fix": "the network's own target (s y - d^2 n) / (d sqrt(s^2 + d^2)), without weight",
}

SIGMAS = [5.0, 2.0, 0.8, 0.3, 0.0]
PICK = [[0, 2, 3], [1, 4, 3], [2, 0, 1]]
Y = [[0.6, -0.2], [-0.4, 0.7], [0.3, 0.1]]
NOISE = [[0.5, -1.1], [0.9, 0.3], [-0.7, 1.4]]


class EDMPrecond(nn.Module):
    def __init__(self, sigma_data=0.5):
        super().__init__()
        self.sigma_data = sigma_data
        self.model = nn.Linear(2, 2)
        self.level = nn.Embedding(5, 2)
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([[0.3, -0.4], [0.2, 0.6]]))
            self.model.bias.copy_(torch.tensor([0.1, -0.1]))
            self.level.weight.copy_(torch.arange(10.0).view(5, 2) / 10 - 0.4)

    def raw(self, x, index, sigma):
        c_in = 1 / (self.sigma_data**2 + sigma**2).sqrt()
        return torch.tanh(self.model(c_in * x) + self.level(index))

    def forward(self, x, index, sigma):
        c_skip = self.sigma_data**2 / (sigma**2 + self.sigma_data**2)
        c_out = sigma * self.sigma_data / (sigma**2 + self.sigma_data**2).sqrt()
        return c_skip * x + c_out * self.raw(x, index, sigma)


class EDMLoss:
    def __init__(self, sigma_data=0.5):
        self.sigma_data = sigma_data

    def __call__(self, net, y, index, sigma, n):
        weight = (sigma**2 + self.sigma_data**2) / (sigma * self.sigma_data) ** 2  # ORIGIN
        return (weight * (net(y + sigma * n, index, sigma) - y) ** 2).mean()

    def stable(self, net, y, index, sigma, n):
        target = (sigma * y - self.sigma_data**2 * n) / (self.sigma_data * (sigma**2 + self.sigma_data**2).sqrt())
        return (net.raw(y + sigma * n, index, sigma) - target).square().mean()


def build(fixed: bool = False):
    net = EDMPrecond()
    criterion = EDMLoss()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    sigmas, y, noise = torch.tensor(SIGMAS), torch.tensor(Y), torch.tensor(NOISE)

    def step(i):
        index = torch.tensor(PICK[i % 3])
        sigma = sigmas[index][:, None]
        opt.zero_grad()
        loss = (criterion.stable if fixed else criterion)(net, y, index, sigma, noise)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact():
    def c(v):
        return torch.tensor(v, dtype=torch.float64)

    p = {"model.weight": c([[0.3, -0.4], [0.2, 0.6]]), "model.bias": c([0.1, -0.1]), "level.weight": torch.arange(10, dtype=torch.float64).view(5, 2) / 10 - 0.4}
    for i in range(2):
        p = {k: v.detach().requires_grad_() for k, v in p.items()}
        loss = 0
        for row, index in enumerate(PICK[i]):
            s, y, n = SIGMAS[index], c(Y[row]), c(NOISE[row])
            f = torch.tanh((y + s * n) / (0.25 + s * s) ** 0.5 @ p["model.weight"].t() + p["model.bias"] + p["level.weight"][index])
            if s == 0:
                each = (f + n).square()  # the limit
            else:
                skip, out = 0.25 / (s * s + 0.25), s * 0.5 / (s * s + 0.25) ** 0.5
                each = (s * s + 0.25) / (s * 0.5) ** 2 * (skip * (y + s * n) + out * f - y).square()
            loss = loss + each.sum() / 6
        g = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        p = {k: v - 0.05 * g[k] for k, v in p.items()}
    return loss, g


def truth():
    return exact()[1]
