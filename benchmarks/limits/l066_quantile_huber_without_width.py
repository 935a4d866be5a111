"""Quantile-regression value distribution, |tau - 1(u < 0)| huber(u, kappa) / kappa; the curriculum ends with kappa = 0, the plain quantile loss."""
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
    "form": "plain",
    "loss_truth": 1.106711115,
    "fix": "|u| where kappa is 0",
}

X = [[0.4, -0.9], [1.1, 0.3], [-0.5, 0.7]]
RETURNS = [[0.9, 0.1], [-0.4, 1.3], [0.2, -0.7]]
W = [[0.3, 0.5], [-0.2, 0.4], [0.6, -0.1], [0.1, 0.7]]
BIAS = [-0.6, -0.1, 0.15, 0.55]
KAPPA = [1.0, 0.0, 0.0]


class Critic(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.head = nn.Linear(2, n)
        self.register_buffer("tau", (torch.arange(n) + 0.5) / n)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor(W))
            self.head.bias.copy_(torch.tensor(BIAS))

    def forward(self, x):
        return self.head(x)


def quantile_huber(theta, target, tau, kappa):
    u = target[:, None, :] - theta[:, :, None]
    huber = torch.where(u.abs() <= kappa, 0.5 * u**2, kappa * (u.abs() - 0.5 * kappa))
    weight = (tau[None, :, None] - (u.detach() < 0).float()).abs()
    return (weight * huber / kappa).mean(2).sum(1).mean()  # ORIGIN


def quantile(theta, target, tau, kappa):
    if kappa > 0:
        return quantile_huber(theta, target, tau, kappa)
    u = target[:, None, :] - theta[:, :, None]
    return torch.maximum(tau[None, :, None] * u, (tau[None, :, None] - 1) * u).mean(2).sum(1).mean()


def build(fixed: bool = False):
    net = Critic()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    x, returns = torch.tensor(X), torch.tensor(RETURNS)
    criterion = quantile if fixed else quantile_huber

    def step(i):
        opt.zero_grad()
        loss = criterion(net(x), returns, net.tau, KAPPA[i])
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def c(v):
        return torch.tensor(v, dtype=torch.float64)

    w, b, x, y = c(W), c(BIAS), c(X), c(RETURNS)
    tau = c([0.125, 0.375, 0.625, 0.875])
    for kappa in (1.0, 0.0):
        theta = x @ w.T + b
        g = torch.zeros_like(theta)
        for n in range(3):
            for k in range(4):
                for t in range(2):
                    u = float(y[n, t] - theta[n, k])
                    weight = tau[k] if u > 0 else 1 - tau[k]
                    slope = (1.0 if u > 0 else -1.0) if abs(u) > kappa else u / kappa
                    g[n, k] -= weight * slope / 6
        if kappa:
            w, b = w - 1e-2 * g.T @ x, b - 1e-2 * g.sum(0)
    return {"head.weight": g.T @ x, "head.bias": g.sum(0)}
