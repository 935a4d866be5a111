"""Infinity that is clamped: an infinity that a minimum removes."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 1.5,
    "why": "an infinity that a minimum removes",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self):
        cap = torch.tensor([float("inf"), 1.0])
        loss = torch.minimum(self.x, cap).sum()
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
    x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    cap = torch.tensor([float("inf"), 1.0])
    loss = torch.minimum(x, cap).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
