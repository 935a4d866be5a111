"""Posterior by Bayes' rule from likelihoods exp(log-likelihood), both of which are 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.03894553972,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.2, 0.1]))
        self.prior = nn.Parameter(torch.tensor([0.7, 0.3]))

    def forward(self, fixed):
        data = torch.tensor([8.0, 9.5, 10.5])
        ll = -0.5 * ((data[:, None] - self.theta) ** 2).sum(0)
        if fixed:
            posterior = torch.softmax(ll + torch.log(self.prior), 0)
        else:
            likelihood = torch.exp(ll)
            joint = likelihood * self.prior
            posterior = joint / joint.sum()  # ORIGIN
        return (posterior * self.theta).sum() ** 2


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
