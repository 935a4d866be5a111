"""Clipped policy objective with densities of thirty joints multiplied up: standard deviations of 0.015 make them 1e42, both of them."""
import math

import torch
from torch import nn

META = {
    "origin_op": "prod",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -0.3191406904,
    "fix": "exp of the difference of the log-densities",
}


class JointPolicy(nn.Module):
    CLIP = 0.2

    def __init__(self):
        super().__init__()
        joint = torch.arange(30.0)
        self.weight = nn.Parameter(torch.stack([torch.sin(joint), torch.cos(2 * joint)]) * 0.5)
        self.log_std = nn.Parameter(-4.2 + 0.05 * torch.sin(3 * joint))
        self.register_buffer("obs", torch.tensor([[0.3, -0.2], [0.5, 0.4]]))
        self.register_buffer("old_mean", self.obs @ self.weight.detach() + 0.0002 * torch.cos(joint))
        self.register_buffer("old_log_std", self.log_std.detach() + 0.0005)
        self.register_buffer("action", self.old_mean + 0.01 * torch.sin(torch.stack([joint + 1, 2 * joint])))
        self.register_buffer("advantage", torch.tensor([1.5, -0.7]))

    def density(self, mean, log_std):
        std = log_std.exp()
        each = torch.exp(-0.5 * ((self.action - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        return torch.prod(each, dim=-1)  # ORIGIN

    def ratio(self, fixed):
        mean = self.obs @ self.weight
        if fixed:
            log = lambda m, s: (-0.5 * ((self.action - m) * torch.exp(-s)) ** 2 - s).sum(-1)
            return torch.exp(log(mean, self.log_std) - log(self.old_mean, self.old_log_std))
        return self.density(mean, self.log_std) / self.density(self.old_mean, self.old_log_std)

    def forward(self, fixed):
        ratio = self.ratio(fixed)
        clipped = ratio.clamp(1 - self.CLIP, 1 + self.CLIP)
        return -torch.min(ratio * self.advantage, clipped * self.advantage).mean()


def build(fixed: bool = False):
    net = JointPolicy()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(weight, log_std, obs, old_mean, old_log_std, action, advantage):
    mean = obs @ weight
    log = ((action - old_mean) ** 2 / (2 * torch.exp(2 * old_log_std)) - (action - mean) ** 2 / (2 * torch.exp(2 * log_std)) + old_log_std - log_std).sum(1)
    assert log.abs().max() < 0.15  # within the clip
    return -(log.exp() * advantage).mean()


def truth():
    net = JointPolicy().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
