"""Attention weights exp(s) / sum exp(s): unscaled scores of 200.

Source: well-known fault (attention without subtraction of the maximum)
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
    "loss_truth": 0.6719318918,
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[10.0, 10.0], [0.5, -0.2]]))

    def forward(self, fixed):
        k, v = torch.tensor([[10.0, 10.0], [9.9, 10.05], [1.0, 0.0]]), torch.tensor([[1.0], [0.3], [-0.4]])
        s = self.q @ k.T
        if fixed:
            w = torch.softmax(s, -1)
        else:
            w = torch.exp(s)  # ORIGIN
            w = w / w.sum(-1, keepdim=True)
        loss = ((w @ v) - 0.1).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Attention()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    q = torch.tensor([[10.0, 10.0], [0.5, -0.2]], dtype=torch.float64, requires_grad=True)
    k, v = torch.tensor([[10.0, 10.0], [9.9, 10.05], [1.0, 0.0]]), torch.tensor([[1.0], [0.3], [-0.4]])
    s = q @ k.T
    w = torch.softmax(s, -1)
    loss = ((w @ v) - 0.1).pow(2).sum()
    dq_, = torch.autograd.grad(loss, [q])
    return {"q": dq_}
