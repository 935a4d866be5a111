"""Off-diagonal block Q of the left Jacobian of SE(3), with (t - sin t) / t^3, (1 - t^2/2 - cos t) / t^4, (t - sin t - t^3/6) / t^5, at no rotation."""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.483683842,
    "fix": "the series 1/6 - .., -1/24 + .., -1/120 + .. of the three coefficients",
}


def hat(v):
    x, y, z = v.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).unflatten(-1, (3, 3))


class PoseUncertainty(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [0.7, -0.4, 0.6], [-0.5, 0.9, 0.8]]))
        self.rho = nn.Parameter(torch.tensor([[0.6, -0.2, 0.9], [0.3, 0.8, -0.5], [1.0, 0.1, 0.4]]))
        self.register_buffer("lever", torch.tensor([0.5, -1.0, 0.7]))
        self.register_buffer("goal", torch.tensor([[0.2, 0.1, -0.3], [0.4, 0.0, 0.1], [-0.2, 0.5, 0.3]]))

    def coefficients(self, fixed):
        t2 = (self.phi * self.phi).sum(-1)[:, None, None]
        if fixed:
            series = lambda first: sum((-1) ** k * t2**k / math.gamma(1 + first + 2 * k) for k in range(9))
            return series(3), -series(4), -series(5)
        t = t2.sqrt()
        first = (t - t.sin()) / t**3  # ORIGIN
        second = (1 - t2 / 2 - t.cos()) / t2**2
        third = (t - t.sin() - t**3 / 6) / t**5
        return first, second, third

    def block(self, fixed):
        p, r = hat(self.phi), hat(self.rho)
        a, b, c = self.coefficients(fixed)
        prp = p @ r @ p
        q = 0.5 * r + a * (p @ r + r @ p + prp)
        q = q - b * (p @ p @ r + r @ p @ p - 3 * prp)
        return q - 0.5 * (b - 3 * c) * (prp @ p + p @ prp)

    def forward(self, fixed):
        moved = torch.einsum("nij,j->ni", self.block(fixed), self.lever)
        return (moved - self.goal).square().sum(-1).mean()


def build(fixed: bool = False):
    net = PoseUncertainty()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(phi, rho, lever, goal):
    # Q = sum_{n, m} phi^n rho phi^m / (n + m + 2)!, its defining series
    p, r = hat(phi), hat(rho)
    powers = [torch.eye(3).expand(3, 3, 3)]
    for _ in range(20):
        powers.append(powers[-1] @ p)
    q = sum(powers[n] @ r @ powers[m] / math.gamma(1 + n + m + 2) for n in range(21) for m in range(21 - n))
    return ((q @ lever - goal) ** 2).sum(1).mean()


def truth():
    net = PoseUncertainty().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
