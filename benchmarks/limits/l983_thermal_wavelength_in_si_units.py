"""Translational partition function with h / sqrt(2 pi m k T) in SI units: m k is 1e-49 and less."""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.953481123,
    "fix": "the sum of the logarithms",
}


class Translational(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_t = nn.Parameter(torch.tensor([5.7, 6.2]))
        self.log_v = nn.Parameter(torch.tensor([-3.8, -2.0]))
        self.register_buffer("mass", torch.tensor([6.6465e-27, 2.3259e-26]))
        self.register_buffer("boltzmann", torch.tensor(1.380649e-23))
        self.register_buffer("planck", torch.tensor(6.62607e-34))
        self.register_buffer("entropy", torch.tensor([70.0, 72.0]))

    def log_wavelength(self, fixed):
        temperature = self.log_t.exp()
        if fixed:
            log_momentum2 = math.log(2 * math.pi) + self.mass.log() + self.boltzmann.log() + self.log_t
            return self.planck.log() - 0.5 * log_momentum2
        momentum = torch.sqrt(2 * math.pi * self.mass * self.boltzmann * temperature)
        wavelength = self.planck / momentum  # ORIGIN
        return torch.log(wavelength)

    def forward(self, fixed):
        log_q = self.log_v - 3 * self.log_wavelength(fixed)
        return (log_q + 1.5 - self.entropy).pow(2).sum()


def build(fixed: bool = False):
    net = Translational()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(log_t, log_v, mass, boltzmann, planck, entropy):
    log_q = log_v + 1.5 * (math.log(2 * math.pi) + mass.log() + boltzmann.log() + log_t) - 3 * planck.log()
    return ((log_q + 1.5 - entropy) ** 2).sum()


def truth():
    net = Translational().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
