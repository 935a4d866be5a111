"""Generalised mean pooling with an exponent that has reached 0: 1 ** inf, the limit is the geometric mean.

Source: well-known fault (GeM pooling with a learned exponent)
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1642449635,
}


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(0.0))

    def forward(self, fixed):
        x = torch.tensor([[0.5, 1.5, 2.0], [1.0, 0.3, 0.8]])
        if fixed:
            m, v = torch.log(x).mean(1), torch.log(x).var(1, correction=0)
            pooled = torch.exp(m + self.p * v / 2)
        else:
            pooled = (x**self.p).mean(1) ** (1 / self.p)  # ORIGIN
        loss = (pooled - 1.0).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Pool()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    p = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[0.5, 1.5, 2.0], [1.0, 0.3, 0.8]])
    m, v = torch.log(x).mean(1), torch.log(x).var(1, correction=0)
    pooled = torch.exp(m + p * v / 2)
    loss = (pooled - 1.0).pow(2).sum()
    dp_, = torch.autograd.grad(loss, [p])
    return {"p": dp_}
