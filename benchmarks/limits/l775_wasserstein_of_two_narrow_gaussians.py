"""Distance between diagonal gaussians: sqrt of the sum of squares of differences of means and
deviations, which are equal for one pair.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.4530559845,
    "bound": 1.5,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([[0.1, 0.2], [0.5, 0.5]]))
        self.log_std = nn.Parameter(torch.tensor([[0.0, 0.0], [0.3, -0.2]]))

    def forward(self, fixed):
        m = torch.tensor([[0.1, 0.2], [0.4, 0.7]])
        s = torch.ones(2, 2)
        w2 = ((self.mu - m) ** 2 + (self.log_std.exp() - s) ** 2).sum(1)
        return torch.sqrt(w2 + 1e-24).sum() if fixed else torch.sqrt(w2).sum()  # ORIGIN


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
    true["mu"][0] = float("nan")
    true["log_std"][0] = float("nan")
    return true
