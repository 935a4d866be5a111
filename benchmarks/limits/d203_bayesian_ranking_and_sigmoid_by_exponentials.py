"""Two faults in one step: bpr loss -log(sigmoid(difference)) with a difference of -150;
and sigmoid as e^x / (1 + e^x) at x = 100: inf / inf.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["log", "exp"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 50.47615942,
}


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([3.0, -2.0]))

    def forward(self, fixed):
        items = torch.tensor([[-40.0, 15.0], [0.2, 0.1], [1.0, 0.5]])
        if fixed:
            loss = -nn.functional.logsigmoid(items @ self.u).mean()
        else:
            loss = -torch.log(torch.sigmoid(items @ self.u)).mean()  # ORIGIN
        return loss


class Logistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([4.0, -1.0]))

    def forward(self, fixed):
        x = torch.tensor([[30.0, 20.0], [0.1, 0.5], [-0.2, 0.3]])
        if fixed:
            p = torch.sigmoid(x @ self.w)
        else:
            p = torch.exp(x @ self.w) / (1 + torch.exp(x @ self.w))  # ORIGIN
        loss = (p - torch.tensor([1.0, 0.0, 1.0])).pow(2).mean()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Ranker()
        self.second = Logistic()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    u = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    items = torch.tensor([[-40.0, 15.0], [0.2, 0.1], [1.0, 0.5]])
    loss = -nn.functional.logsigmoid(items @ u).mean()
    du_, = torch.autograd.grad(loss, [u])
    return {"first.u": du_}


def truth_second():
    w = torch.tensor([4.0, -1.0], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[30.0, 20.0], [0.1, 0.5], [-0.2, 0.3]])
    p = torch.sigmoid(x @ w)
    loss = (p - torch.tensor([1.0, 0.0, 1.0])).pow(2).mean()
    dw_, = torch.autograd.grad(loss, [w])
    return {"second.w": dw_}


def truth():
    return {**truth_first(), **truth_second()}
