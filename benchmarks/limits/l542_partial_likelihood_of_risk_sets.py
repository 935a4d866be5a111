"""Cox partial likelihood: log(cumsum(exp(eta))) over risk sets with eta = 95.

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
    "loss_truth": 0.850706639,
}


class Risk(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor([30.0, -5.0]))

    def forward(self, x):
        return x @ self.beta


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.risk = Risk()

    def forward(self, fixed):
        x = torch.tensor([[3.2, 0.2], [3.1, -0.1], [0.1, 0.4]])
        event = torch.tensor([1.0, 1.0, 0.0])
        eta = self.risk(x)
        if fixed:
            log_risk = torch.logcumsumexp(eta, 0)
        else:
            log_risk = torch.log(torch.cumsum(torch.exp(eta), dim=0))  # ORIGIN
        return -((eta - log_risk) * event).sum() / event.sum()


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
