"""Quotient near zero: numerator and divisor are 1e-3, not 0."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 0.4605441444,
    "why": "numerator and divisor are 1e-3, not 0",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1e-3, 0.5]))

    def forward(self):
        loss = (torch.sin(self.x) / self.x - 0.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Model()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad()
        loss = net()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([1e-3, 0.5], dtype=torch.float64, requires_grad=True)
    loss = (torch.sin(x) / x - 0.5).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
