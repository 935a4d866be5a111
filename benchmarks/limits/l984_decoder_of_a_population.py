"""Bayesian decoder of forty Poisson neurons, the product of f^n e^-f over its sum: the products of a lively trial pass 3e38."""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "prod",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 4.608844423,
    "fix": "the softmax of the summed log-likelihoods",
}


class PopulationDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_gain = nn.Parameter(torch.tensor(2.0))
        self.width = nn.Parameter(torch.tensor(1.1))
        self.base = nn.Parameter(torch.tensor(0.8))
        self.register_buffer("preferred", torch.linspace(-3, 3, 40))
        self.register_buffer("stimuli", torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0]))
        lively = (9 * torch.exp(-((self.preferred - 0.45) ** 2) / 2)).round() + 1
        quiet = (2 * torch.exp(-((self.preferred + 0.3) ** 2))).round()
        self.register_buffer("spikes", torch.stack([lively, quiet]))
        self.register_buffer("true", torch.tensor([2, 1]))

    def tuning(self):
        distance = self.stimuli[:, None] - self.preferred
        return self.base + torch.exp(self.log_gain - distance**2 / (2 * self.width**2))

    def log_posterior(self, fixed):
        rate, n = self.tuning(), self.spikes.unsqueeze(1)
        if fixed:
            return torch.log_softmax((n * rate.log() - rate).sum(-1), dim=-1)
        each = rate**n * torch.exp(-rate)
        likelihood = each.prod(dim=-1)  # ORIGIN
        return torch.log(likelihood / likelihood.sum(dim=-1, keepdim=True))

    def forward(self, fixed):
        return F.nll_loss(self.log_posterior(fixed), self.true)


def build(fixed: bool = False):
    net = PopulationDecoder()
    opt = torch.optim.Adam(net.parameters(), lr=1e-5)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(log_gain, width, base, preferred, stimuli, spikes, true):
    rate = base + torch.exp(log_gain - (stimuli[:, None] - preferred) ** 2 / (2 * width**2))
    log = spikes @ rate.log().T - rate.sum(1)
    return -(log - torch.logsumexp(log, 1, keepdim=True))[torch.arange(2), true].mean()


def truth():
    net = PopulationDecoder().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
