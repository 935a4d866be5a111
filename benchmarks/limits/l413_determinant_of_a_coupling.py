"""Log-determinant of a coupling layer as the log of the product of its scales: exp(60) * exp(50).

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "prod",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -39.699375,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([[60.0, 50.0], [0.3, -0.4]]))

    def forward(self, fixed):
        if fixed:
            loss = -self.s.sum(-1).mean() + 0.01 * self.s.pow(2).mean()
        else:
            scale = torch.exp(self.s)
            logdet = torch.log(scale.prod(dim=-1))  # ORIGIN
            loss = -logdet.mean() + 0.01 * self.s.pow(2).mean()
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
