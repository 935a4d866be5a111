"""Scores at the edge: exp of 80 is an ordinary number in float32."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 5.812450567,
    "why": "exp of 80 is an ordinary number in float32",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([80.0, 1.0]))

    def forward(self):
        loss = (torch.exp(self.x) * torch.tensor([1e-34, 0.1])).sum()
        return loss


def build(fixed: bool = False):
    net = Model()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([80.0, 1.0], dtype=torch.float64, requires_grad=True)
    loss = (torch.exp(x) * torch.tensor([1e-34, 0.1])).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
