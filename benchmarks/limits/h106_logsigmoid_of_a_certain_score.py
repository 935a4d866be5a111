"""Logsigmoid of a certain score: logsigmoid holds at -300."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 150.063464,
    "why": "logsigmoid holds at -300",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([-300.0, 2.0]))

    def forward(self):
        loss = -nn.functional.logsigmoid(self.s).mean()
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
    s = torch.tensor([-300.0, 2.0], dtype=torch.float64, requires_grad=True)
    loss = -nn.functional.logsigmoid(s).mean()
    ds_, = torch.autograd.grad(loss, [s])
    return {"s": ds_}
