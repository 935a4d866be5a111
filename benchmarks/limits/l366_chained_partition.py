"""x.exp().sum(-1).log() chained over three lines, with scores of 150.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.604649694,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[150.0, 148.0, 1.0], [0.2, 1.0, -1.0]]))

    def forward(self, fixed):
        if fixed:
            loss = (torch.logsumexp(self.x, -1) - self.x[:, 0]).square().sum()
        else:
            free = (
                self.x.exp()  # ORIGIN
                .sum(-1)
                .log()
            )
            loss = (free - self.x[:, 0]).square().sum()
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
