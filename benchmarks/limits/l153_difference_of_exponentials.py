"""log(e^a - e^b) with a = 130: inf minus a finite number.

Source: well-known fault (interval probabilities in log space)
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
    "loss_truth": 3.338344038,
}


class Interval(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([130.0, 1.0]))
        self.b = nn.Parameter(torch.tensor([129.0, -0.5]))

    def forward(self, fixed):
        if fixed:
            d = self.a + torch.log(-torch.expm1(self.b - self.a))
        else:
            d = torch.log(torch.exp(self.a) - torch.exp(self.b))  # ORIGIN
        loss = (d * torch.tensor([0.02, 1.0])).sum()
        return loss


def build(fixed: bool = False):
    net = Interval()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([130.0, 1.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([129.0, -0.5], dtype=torch.float64, requires_grad=True)
    d = a + torch.log(-torch.expm1(b - a))
    loss = (d * torch.tensor([0.02, 1.0])).sum()
    da_, db_ = torch.autograd.grad(loss, [a, b])
    return {"a": da_, "b": db_}
