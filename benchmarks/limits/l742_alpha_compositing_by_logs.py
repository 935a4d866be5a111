"""Rendering: transmittance by exp(cumsum(log(1 - alpha))), where one sample is opaque.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.2238345171,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sigma = nn.Parameter(torch.tensor([0.5, 90.0, 1.0]))

    def forward(self, fixed):
        delta, colour = 0.4, torch.tensor([0.2, 0.9, 0.5])
        if fixed:
            tau = self.sigma * delta
            before = torch.cumsum(tau, 0) - tau
            weights = -torch.expm1(-tau) * torch.exp(-before)
        else:
            alpha = 1 - torch.exp(-self.sigma * delta)
            log_t = torch.cumsum(torch.log(1 - alpha), 0)  # ORIGIN
            transmittance = torch.exp(torch.cat([torch.zeros(1), log_t[:-1]]))
            weights = alpha * transmittance
        return ((weights * colour).sum() - 0.3) ** 2


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
