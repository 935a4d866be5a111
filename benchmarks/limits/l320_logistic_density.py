"""e^x / (1 + e^x)^2, the logistic density, at 95.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.7849881806137085,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([95.0, 0.5, -2.0]))

    def forward(self, fixed):
        if fixed:
            density = torch.sigmoid(self.x) * torch.sigmoid(-self.x)
            loss = (density * torch.tensor([1.0, 2.0, 3.0])).sum()
        else:
            e = torch.exp(self.x)
            density = e / (1 + e) ** 2  # ORIGIN
            loss = (density * torch.tensor([1.0, 2.0, 3.0])).sum()
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
