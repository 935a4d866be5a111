"""Distance of two atoms at one place as a penalty.

Source: well-known fault (distances of coincident points)
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 1.802775638,
    "bound": 1.0,
}


class Atoms(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        self.b = nn.Parameter(torch.tensor([[0.0, 1.0], [0.5, 1.0]]))

    def forward(self, fixed):
        if fixed:
            loss = torch.linalg.vector_norm(self.a - self.b, dim=1).sum()
        else:
            loss = torch.sqrt((self.a - self.b).pow(2).sum(1)).sum()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Atoms()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([[0.0, 1.0], [0.5, 1.0]], dtype=torch.float64, requires_grad=True)
    loss = torch.linalg.vector_norm(a - b, dim=1).sum()
    da_, db_ = torch.autograd.grad(loss, [a, b])
    da_[0] = float("nan")
    db_[0] = float("nan")
    return {"a": da_, "b": db_}
