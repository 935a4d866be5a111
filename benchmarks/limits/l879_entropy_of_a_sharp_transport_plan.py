"""Entropic transport between points: the plan is exp(-C / eps) normalised by rows, the objective
<P, C> + eps <P, log P>; far pairs underflow.

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
    "loss_truth": 0.33,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Parameter(torch.tensor([[0.0, 0.1], [1.0, 0.8], [3.0, -0.5]]))

    def forward(self, fixed):
        targets = torch.tensor([[0.1, 0.0], [1.2, 0.7], [2.5, -0.4]])
        eps = 0.02
        cost = ((self.points[:, None] - targets[None]) ** 2).sum(-1)
        if fixed:
            log_plan = torch.log_softmax(-cost / eps, 1)
            plan = log_plan.exp()
            return (plan * cost).sum() + eps * (plan * log_plan).sum()
        kernel = torch.exp(-cost / eps)
        plan = kernel / kernel.sum(1, keepdim=True)
        entropy = (plan * torch.log(plan)).sum()  # ORIGIN
        return (plan * cost).sum() + eps * entropy


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
    return {name: p.grad for name, p in net.named_parameters()}
