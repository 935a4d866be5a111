"""Discrete-time survival: softmax over time bins, the likelihood of a censored subject is log(1 -
cumulative incidence), which is 1 in float32.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 51.2218644661,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 5))

    def forward(self, fixed):
        x = torch.tensor([[0.5, -0.2], [1.2, 0.8], [-0.7, 0.3]])
        time = torch.tensor([1, 2, 3])
        event = torch.tensor([1.0, 0.0, 0.0])
        logits = self.body(x)
        if fixed:
            logs = torch.log_softmax(logits, 1)
            log_pmf = logs.gather(1, time[:, None]).squeeze(1)
            later = torch.arange(5)[None, :] > time[:, None]
            log_survival = torch.logsumexp(logs.masked_fill(~later, float("-inf")), 1)
            return -(event * log_pmf + (1 - event) * log_survival).mean()
        pmf = torch.softmax(logits, dim=1)
        cif = torch.cumsum(pmf, dim=1).gather(1, time[:, None]).squeeze(1)
        observed = pmf.gather(1, time[:, None]).squeeze(1)
        loss = event * torch.log(observed) + (1 - event) * torch.log(1 - cif)  # ORIGIN
        return -loss.mean()


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(30 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
    return {name: p.grad for name, p in net.named_parameters()}
