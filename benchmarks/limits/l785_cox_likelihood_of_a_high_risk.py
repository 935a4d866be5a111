"""Cox partial likelihood: risk - log(cumsum(exp(risk))) over patients in the order of time; a risk
of 100.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.18387963,
}


class CoxLoss(nn.Module):
    def forward(self, risk, event):
        hazard = torch.exp(risk)
        at_risk = torch.log(torch.cumsum(hazard, dim=0))  # ORIGIN
        return -((risk - at_risk) * event).sum() / event.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.lin.weight.fill_(10.0)
        self.loss = CoxLoss()

    def forward(self, fixed):
        x = torch.tensor([[9.5], [10.0], [9.8], [9.9]])
        event = torch.tensor([0.0, 1.0, 1.0, 1.0])
        risk = self.lin(x).squeeze(1)
        if fixed:
            return -((risk - torch.logcumsumexp(risk, 0)) * event).sum() / event.sum()
        return self.loss(risk, event)


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
