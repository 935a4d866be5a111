"""tanh written with exponentials at an activation of 95: inf / inf.

Source: well-known fault (hand-written activation)
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
    "loss_truth": 1.529253198,
}


class Activation(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([95.0, 0.4, -0.9]))

    def forward(self, fixed):
        if fixed:
            y = torch.tanh(self.x)
        else:
            y = (torch.exp(self.x) - torch.exp(-self.x)) / (torch.exp(self.x) + torch.exp(-self.x))  # ORIGIN
        loss = (y - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Activation()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([95.0, 0.4, -0.9], dtype=torch.float64, requires_grad=True)
    y = torch.tanh(x)
    loss = (y - 0.3).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
