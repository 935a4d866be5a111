"""Length sqrt(x^2 + y^2) of coordinates near 1e25: the squares overflow.

Source: well-known fault (hypot by hand, astronomical units)
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 6.118033989,
}


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([3e25, 1.0]))
        self.y = nn.Parameter(torch.tensor([4e25, 2.0]))

    def forward(self, fixed):
        if fixed:
            r = torch.hypot(self.x, self.y)
        else:
            r = torch.sqrt(self.x**2 + self.y**2)  # ORIGIN
        loss = (r * torch.tensor([1e-25, 0.5])).sum()
        return loss


def build(fixed: bool = False):
    net = Distance()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([3e25, 1.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([4e25, 2.0], dtype=torch.float64, requires_grad=True)
    r = torch.hypot(x, y)
    loss = (r * torch.tensor([1e-25, 0.5])).sum()
    dx_, dy_ = torch.autograd.grad(loss, [x, y])
    return {"x": dx_, "y": dy_}
