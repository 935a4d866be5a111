"""A partition function summed over a comprehension.

Source: well-known fault (energy-based models)
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
    "loss_truth": 405.0932312,
}


class States(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([120.0, 118.0, 3.0]))

    def forward(self, fixed):
        if fixed:
            free = torch.logsumexp(self.e, 0)
        else:
            free = torch.log(sum([torch.exp(e) for e in self.e.unbind()]))  # ORIGIN
        loss = (free - 100) ** 2
        return loss


def build(fixed: bool = False):
    net = States()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    e = torch.tensor([120.0, 118.0, 3.0], dtype=torch.float64, requires_grad=True)
    free = torch.logsumexp(e, 0)
    loss = (free - 100) ** 2
    found = torch.autograd.grad(loss, [e], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["e"], [e], found)}
    return true
