"""log(1 - (1 - x^a)^b) at x = 1e-20: x^a underflows.

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
    "loss_truth": 6.991083631,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1e-20, 0.4]))
        self.b = nn.Parameter(torch.tensor([2.0, 1.5]))

    def forward(self, fixed):
        if fixed:
            first = self.b[0].log() + 3 * self.x[0].log()
            second = torch.log(1 - (1 - self.x[1] ** 3) ** self.b[1])
            loss = -(first + second) / 20
        else:
            inner = 1 - self.x**3
            tail = torch.log(1 - inner**self.b)  # ORIGIN
            loss = -tail.mean() / 10
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
