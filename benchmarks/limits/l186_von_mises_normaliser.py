"""Log normaliser of a von Mises distribution, log I0(k), at k = 200.

Source: well-known fault (directional statistics)
"""
import torch
from torch import nn

META = {
    "origin_op": "special_i0",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 15.4565229,
}


class Direction(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([200.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            norm = torch.log(torch.special.i0e(self.k)) + self.k
        else:
            norm = torch.log(torch.special.i0(self.k))  # ORIGIN
        loss = (norm - self.k * 0.9).sum()
        return loss


def build(fixed: bool = False):
    net = Direction()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    k = torch.tensor([200.0, 2.0], dtype=torch.float64, requires_grad=True)
    norm = torch.log(torch.special.i0e(k)) + k
    loss = (norm - k * 0.9).sum()
    found = torch.autograd.grad(loss, [k], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["k"], [k], found)}
    return true
