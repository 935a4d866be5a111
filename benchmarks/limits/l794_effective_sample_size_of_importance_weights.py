"""Effective sample size, (sum w)^2 / sum w^2, of importance weights w = exp(log p - log q) with a
log ratio of 60.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.9377283108,
}


def effective_sample_size(log_p, log_q):
    w = torch.exp(log_p - log_q)
    return w.sum() ** 2 / (w**2).sum()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_p = nn.Parameter(torch.tensor([12.0, 11.5, 13.0]))

    def forward(self, fixed):
        log_q = torch.tensor([-50.0, -50.7, -49.6])
        if fixed:
            d = self.log_p - log_q
            return torch.exp(2 * torch.logsumexp(d, 0) - torch.logsumexp(2 * d, 0)) / 3
        return effective_sample_size(self.log_p, log_q) / 3


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
