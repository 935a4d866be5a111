"""where(x > 0, sqrt(x), 0): the root of a negative number is masked, its gradient is not.

Source: well-known fault (where and its gradient)
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 3.5,
}


class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([-1.0, 4.0, 0.25]))

    def forward(self, fixed):
        if fixed:
            y = torch.where(self.x > 0, torch.sqrt(torch.where(self.x > 0, self.x, 1.0)), torch.zeros_like(self.x))
        else:
            y = torch.where(self.x > 0, torch.sqrt(self.x), torch.zeros_like(self.x))  # ORIGIN
        loss = (y - 1.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Root()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([-1.0, 4.0, 0.25], dtype=torch.float64, requires_grad=True)
    y = torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), torch.zeros_like(x))
    loss = (y - 1.5).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
