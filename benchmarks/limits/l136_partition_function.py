"""Log partition function log sum exp(-E) of energies near -150.

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
    "loss_truth": 120.1132617,
}


class Energies(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([-150.0, -149.0, -3.0]))

    def forward(self, fixed):
        if fixed:
            log_z = torch.logsumexp(-self.e, 0)
        else:
            log_z = torch.log(torch.exp(-self.e).sum())  # ORIGIN
        loss = log_z + 0.1 * self.e.sum()
        return loss


def build(fixed: bool = False):
    net = Energies()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    e = torch.tensor([-150.0, -149.0, -3.0], dtype=torch.float64, requires_grad=True)
    log_z = torch.logsumexp(-e, 0)
    loss = log_z + 0.1 * e.sum()
    de_, = torch.autograd.grad(loss, [e])
    return {"e": de_}
