"""log(1 + exp(s)) of scores from a layer under autocast: 120 overflows.

Source: well-known fault (hand-written activations)
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.440625191,
}


class Low(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[120.0, 1.0], [2.0, -3.0]]))

    def forward(self, fixed):
        with torch.autocast("cpu", torch.bfloat16):
            s = self.q @ torch.eye(2)
        if fixed:
            y = torch.nn.functional.softplus(s)
        else:
            y = torch.log(1 + torch.exp(s))  # ORIGIN
        loss = (y.float() / 100).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Low()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    q = torch.tensor([[120.0, 1.0], [2.0, -3.0]], dtype=torch.float64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        s = q @ torch.eye(2)
    y = torch.nn.functional.softplus(s)
    loss = (y.float() / 100).pow(2).sum()
    found = torch.autograd.grad(loss, [q], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["q"], [q], found)}
    return true
