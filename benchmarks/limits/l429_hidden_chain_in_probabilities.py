"""Forward pass of a hidden chain in plain probabilities over 40 symbols: the likelihood underflows.

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
    "loss_truth": 132.9231507,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.2, -0.1], [0.4, 0.3]]))
        self.e = nn.Parameter(torch.tensor([-3.0, -4.0]))

    def forward(self, fixed):
        if fixed:
            alpha = torch.log(torch.tensor([0.6, 0.4]))
            for _ in range(40):
                alpha = torch.logsumexp(alpha[:, None] + torch.log_softmax(self.a, 1), 0) + self.e
            loss = -torch.logsumexp(alpha, 0)
        else:
            alpha = torch.tensor([0.6, 0.4])
            for _ in range(40):
                alpha = (alpha @ torch.softmax(self.a, 1)) * torch.exp(self.e)
            loss = -torch.log(alpha.sum())  # ORIGIN
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
