"""Erlang's loss A^n / n! over the sum of A^k / k! with a traffic of 90 and 70 lines: both leave float32.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.03294657086,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.traffic = nn.Parameter(torch.tensor([90.0, 2.0]))

    def forward(self, fixed):
        k = torch.arange(71.0).to(self.traffic)
        if fixed:
            logs = k * self.traffic.log()[:, None] - torch.lgamma(k + 1)
            blocked = torch.exp(logs[:, -1] - torch.logsumexp(logs, 1))
        else:
            terms = self.traffic[:, None] ** k / torch.lgamma(k + 1).exp()  # ORIGIN
            blocked = terms[:, -1] / terms.sum(1)
        return (blocked - 0.1).square().sum()


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
