"""Two faults in one step: distance of two atoms at one place as a penalty;
and row norms by hand as a penalty: a row of zeros has no gradient, any of length up to 0.3 will do.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["sqrt", "sqrt"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 2.702775638,
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


class Ridge(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, -2.0]]))

    def forward(self, fixed):
        if fixed:
            loss = 0.3 * torch.linalg.vector_norm(self.w, dim=1).sum()
        else:
            loss = 0.3 * torch.sqrt((self.w**2).sum(1)).sum()  # ORIGIN
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Atoms()
        self.second = Ridge()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    a = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([[0.0, 1.0], [0.5, 1.0]], dtype=torch.float64, requires_grad=True)
    loss = torch.linalg.vector_norm(a - b, dim=1).sum()
    da_, db_ = torch.autograd.grad(loss, [a, b])
    da_[0] = float("nan")
    db_[0] = float("nan")
    return {"first.a": da_, "first.b": db_}


def truth_second():
    w = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, -2.0]], dtype=torch.float64, requires_grad=True)
    loss = 0.3 * torch.linalg.vector_norm(w, dim=1).sum()
    dw_, = torch.autograd.grad(loss, [w])
    dw_[0] = float("nan")
    return {"second.w": dw_}


def truth():
    return {**truth_first(), **truth_second()}
