"""Root mean square in float16: the squares overflow.

Source: well-known fault (normalisation in half precision)
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
    "loss_truth": 0.5771968961,
}


class Rms(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([300.0, 20.0, -50.0], dtype=torch.float16))

    def forward(self, fixed):
        if fixed:
            size = torch.sqrt((self.x.float() * self.x.float()).mean())
        else:
            size = torch.sqrt((self.x * self.x).mean())  # ORIGIN
        loss = (size.float() / 100 - 1).pow(2)
        return loss


def build(fixed: bool = False):
    net = Rms()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([300.0, 20.0, -50.0], dtype=torch.float64, requires_grad=True)
    size = torch.sqrt((x.float() * x.float()).mean())
    loss = (size.float() / 100 - 1).pow(2)
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
