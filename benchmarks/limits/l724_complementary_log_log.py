"""log(1 - exp(-exp(eta))), the complementary log-log link of a rare event.

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
    "loss_truth": 7.292031947,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.eta = nn.Parameter(torch.tensor([-20.0, -0.5, 0.3]))

    def forward(self, fixed):
        rate = torch.exp(self.eta)
        if fixed:
            logp = torch.log(-torch.expm1(-rate))
        else:
            p = 1 - torch.exp(-rate)
            logp = torch.log(p)  # ORIGIN
        return -(logp * torch.tensor([1.0, 2.0, 1.0])).mean()


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
