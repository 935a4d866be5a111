"""Softmax by hand under bfloat16 autocast: a score of 120 overflows.

Source: well-known fault (attention by hand in low precision)
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
    "loss_truth": 1.030276865,
}


class Low(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[120.0, 119.0], [1.0, 0.5]]))

    def forward(self, fixed):
        with torch.autocast("cpu", torch.bfloat16):
            s = self.q @ torch.eye(2)
        if fixed:
            w = torch.softmax(s, 1)
        else:
            w = torch.exp(s) / torch.exp(s).sum(1, keepdim=True)  # ORIGIN
        loss = (w * torch.tensor([1.0, -0.5])).sum()
        return loss


def build(fixed: bool = False):
    net = Low()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    q = torch.tensor([[120.0, 119.0], [1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    with torch.autocast("cpu", enabled=False):
        s = q @ torch.eye(2)
    w = torch.softmax(s, 1)
    loss = (w * torch.tensor([1.0, -0.5])).sum()
    dq_, = torch.autograd.grad(loss, [q])
    return {"q": dq_}
