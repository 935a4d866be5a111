"""Log-odds of a softmax's first class, which is 1 to rounding.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 3.328123611,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[60.0, 1.0, 2.0], [0.3, 0.5, -0.2]]))

    def forward(self, fixed):
        if fixed:
            odds = self.x[:, 0] - torch.logsumexp(self.x[:, 1:], 1)
            loss = odds.square().sum() / 1000
        else:
            p = torch.softmax(self.x, 1)[:, 0]
            odds = torch.log(p / (1 - p))  # ORIGIN
            loss = odds.square().sum() / 1000
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
