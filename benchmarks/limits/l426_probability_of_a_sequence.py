"""Log of the product of a sequence's token probabilities, each a sigmoid: e^-60 e^-50.

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
    "loss_truth": 55.79880081,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[-60.0, -50.0, 1.0], [0.4, 0.1, 2.0]]))

    def forward(self, fixed):
        if fixed:
            loss = -nn.functional.logsigmoid(self.z).sum(1).mean()
        else:
            probability = torch.sigmoid(self.z).prod(1)
            loss = -torch.log(probability).mean()  # ORIGIN
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
