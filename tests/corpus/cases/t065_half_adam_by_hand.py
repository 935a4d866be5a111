"""A hand-written Adam on half weights uses eps = 1e-8, which is zero in half: units without gradient divide zero by zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "also_ops": ("addcdiv_",),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("optimizer-arithmetic", "eps-underflow", "div-by-zero"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps = 1e-4",
}


class HandAdam:
    def __init__(self, params, lr, eps):
        self.params, self.lr, self.eps, self.t = list(params), lr, eps, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p, m, v in zip(self.params, self.m, self.v, strict=True):
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            v.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            m_hat = m / (1 - 0.9**self.t)
            denom = (v / (1 - 0.99**self.t)).sqrt() + self.eps
            p.sub_(self.lr * m_hat / denom)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(35)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).half()
    with torch.no_grad():
        net[0].bias[:4] = -30.0
    opt = HandAdam(net.parameters(), 1e-3, 1e-4 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(535)

    def step(i):
        x = torch.randn(12, 6, generator=gen)
        net.zero_grad()
        loss = F.mse_loss(net(x.half()).float().squeeze(-1), x[:, 0])
        loss.backward()
        opt.step()
        return loss

    return net, step
