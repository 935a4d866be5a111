"""Forward recursion of a hidden Markov model: scores of -300 exponentiated.

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
    "loss_truth": 3.018965927,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emission = nn.Parameter(torch.tensor([[-300.0, -310.0], [-1.0, -0.5], [-2.0, -0.1]]))
        self.move = nn.Parameter(torch.tensor([[-0.2, -1.7], [-0.9, -0.5]]))

    def forward(self, fixed):
        if fixed:
            alpha = self.emission[0]
            for t in (1, 2):
                alpha = torch.logsumexp(alpha[:, None] + self.move, 0) + self.emission[t]
            loss = -torch.logsumexp(alpha, 0) / 100
        else:
            alpha = self.emission[0]
            for t in (1, 2):
                alpha = torch.log(torch.exp(alpha[:, None] + self.move).sum(0)) + self.emission[t]  # ORIGIN
            loss = -torch.logsumexp(alpha, 0) / 100
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
