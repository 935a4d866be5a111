"""log(e^a + e^b) by hand at 120.

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
    "loss_truth": 120.9401896985612,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([120.0, 0.5]))
        self.b = nn.Parameter(torch.tensor([118.0, -0.5]))

    def forward(self, fixed):
        if fixed:
            merged = torch.logaddexp(self.a, self.b)
            loss = merged.sum()
        else:
            merged = torch.log(torch.exp(self.a) + torch.exp(self.b))  # ORIGIN
            loss = merged.sum()
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
