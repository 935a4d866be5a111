"""(sqrt(1 + x) - 1) / x at 0: 1/2.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 8.549927929068023,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 3.0, -0.5]))

    def forward(self, fixed):
        if fixed:
            q = 1 / (torch.sqrt(1 + self.x) + 1)
            loss = (q * torch.tensor([1.0, 2.0, 3.0])).sum().pow(2)
        else:
            y = torch.sqrt(1 + self.x)
            q = (y - 1) / self.x  # ORIGIN
            loss = (q * torch.tensor([1.0, 2.0, 3.0])).sum().pow(2)
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
