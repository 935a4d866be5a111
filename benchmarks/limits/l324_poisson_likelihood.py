"""log of a Poisson likelihood multiplied out, rate 200.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 11.768423470441967,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([200.0, 3.0]))

    def forward(self, fixed):
        if fixed:
            k = torch.tensor([150.0, 2.0])
            loss = -(k * self.rate.log() - self.rate - torch.lgamma(k + 1)).sum()
        else:
            k = torch.tensor([150.0, 2.0])
            likelihood = self.rate**k * torch.exp(-self.rate) / torch.exp(torch.lgamma(k + 1))
            loss = -torch.log(likelihood).sum()  # ORIGIN
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
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
