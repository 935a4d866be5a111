"""CES production function, log(sum a x^rho) / rho, with rho starting at the Cobb-Douglas case 0: the value is sum a log x, the slope half the variance of log x.

Source: estimation of substitution elasticities started at 1
"""
from dataclasses import dataclass

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
    "loss_truth": 0.02921989961,
    "fix": "mean + rho variance / 2 of log x near 0",
}


def ces(log_x, share, rho):
    inside = torch.logsumexp(rho[:, None, None] * log_x + torch.log(share)[:, None, :], -1)
    return inside / rho[:, None]  # ORIGIN


def ces_with_limit(log_x, share, rho):
    near = rho.abs() < 1e-3
    mean = (share[:, None] * log_x).sum(-1)
    var = (share[:, None] * (log_x - mean[..., None]) ** 2).sum(-1)
    return torch.where(near[:, None], mean + rho[:, None] * var / 2, ces(log_x, share, torch.where(near, torch.ones_like(rho), rho)))


@dataclass
class Specification:
    sectors: int = 2
    inputs: int = 2
    form: object = ces


class Production(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        self.rho = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.raw = nn.Parameter(torch.zeros(spec.sectors, spec.inputs))
        self.tfp = nn.Parameter(torch.tensor([0.2, -0.1]))

    def shares(self):
        return torch.softmax(self.raw, -1)

    def log_output(self, x):
        return self.tfp[:, None] + self.spec.form(torch.log(x), share=self.shares(), rho=self.rho)

    def elasticity(self):
        return 1 / (1 - self.rho)


class NLS:
    def __init__(self, model):
        self.model = model
        self.criterion = nn.MSELoss()

    def __call__(self, x, y):
        return self.criterion(self.model.log_output(x), y)


X = [[[1.5, 0.6], [2.0, 3.1], [0.4, 0.9]], [[0.8, 2.2], [1.7, 0.5], [1.1, 1.9]]]
Y = [[0.3, 1.0, -0.4], [0.1, -0.2, 0.6]]


def build(fixed: bool = False):
    model = Production(Specification(form=ces_with_limit if fixed else ces))
    fit, opt = NLS(model), torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.tensor(X), torch.tensor(Y)

    def step(i):
        opt.zero_grad()
        loss = fit(x, y)
        loss.backward()
        opt.step()
        return loss

    return model, step


def reference():
    import math

    loss, rho, raw, tfp = 0.0, [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]
    for s in range(2):
        for x, y in zip(X[s], Y[s]):
            u, v = math.log(x[0]), math.log(x[1])
            if s == 0:
                f, by_rho, by_raw = (u + v) / 2, (u - v) ** 2 / 8, (u - v) / 4
            else:
                p, q = math.sqrt(x[0]), math.sqrt(x[1])
                f = 2 * math.log((p + q) / 2)
                by_rho = 2 * (p * u + q * v) / (p + q) - 4 * math.log((p + q) / 2)
                by_raw = (p - q) / (p + q)
            off = f + (0.2, -0.1)[s] - y
            loss += off**2 / 6
            rho[s] += off / 3 * by_rho
            raw[s][0] += off / 3 * by_raw
            raw[s][1] -= off / 3 * by_raw
            tfp[s] += off / 3
    t = lambda a: torch.tensor(a, dtype=torch.float64)
    return t(loss), {"rho": t(rho), "raw": t(raw), "tfp": t(tfp)}


def truth():
    return reference()[1]
