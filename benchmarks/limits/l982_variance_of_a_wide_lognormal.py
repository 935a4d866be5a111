"""Moments of a lognormal, log((e^(s^2) - 1) e^(2 m + s^2)), where s = 9.5: the variance is e^181."""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.401059395,
    "fix": "2 m + 2 s^2 + log(-expm1(-s^2))",
}


class LognormalMoments(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.5, -0.3, 1.0]))
        self.sigma = nn.Parameter(torch.tensor([9.5, 0.6, 1.4]))
        self.register_buffer("log_mean", torch.tensor([44.0, 0.1, 2.2]))
        self.register_buffer("log_var", torch.tensor([178.0, -1.0, 6.0]))

    def moments(self, fixed):
        s2 = self.sigma**2
        mean = self.mu + s2 / 2
        if fixed:
            return mean, 2 * mean + s2 + torch.log(-torch.expm1(-s2))
        spread = torch.exp(s2) - 1  # ORIGIN
        var = spread * torch.exp(2 * self.mu + s2)
        return mean, var.log()

    def forward(self, fixed):
        mean, log_var = self.moments(fixed)
        return F.huber_loss(mean, self.log_mean) + F.huber_loss(log_var, self.log_var)


def build(fixed: bool = False):
    net = LognormalMoments()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(mu, sigma, log_mean, log_var):
    s2 = sigma**2
    var = 2 * mu + 2 * s2 + torch.log(1 - torch.exp(-s2))
    return F.huber_loss(mu + s2 / 2, log_mean) + F.huber_loss(var, log_var)


def truth():
    net = LognormalMoments().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
