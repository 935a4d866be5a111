"""Two faults in one step: where(x > 0, sqrt(x), 0): the root of a negative number is masked, its gradient is not;
and log-likelihood of padded steps: the log of a padded 0 is multiplied by a mask of 0.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["sqrt", "log"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 4.386420012,
}


class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([-1.0, 4.0, 0.25]))

    def forward(self, fixed):
        if fixed:
            y = torch.where(self.x > 0, torch.sqrt(torch.where(self.x > 0, self.x, 1.0)), torch.zeros_like(self.x))
        else:
            y = torch.where(self.x > 0, torch.sqrt(self.x), torch.zeros_like(self.x))  # ORIGIN
        loss = (y - 1.5).pow(2).sum()
        return loss


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([[0.5, 0.2], [0.7, 0.0]]))

    def forward(self, fixed):
        mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
        if fixed:
            loss = -(mask * torch.log(torch.where(mask > 0, self.p, 1.0))).sum() / mask.sum()
        else:
            loss = -(mask * torch.log(self.p)).sum() / mask.sum()  # ORIGIN
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Root()
        self.second = Steps()

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
    x = torch.tensor([-1.0, 4.0, 0.25], dtype=torch.float64, requires_grad=True)
    y = torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), torch.zeros_like(x))
    loss = (y - 1.5).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"first.x": dx_}


def truth_second():
    p = torch.tensor([[0.5, 0.2], [0.7, 0.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    loss = -(mask * torch.log(torch.where(mask > 0, p, 1.0))).sum() / mask.sum()
    dp_, = torch.autograd.grad(loss, [p])
    return {"second.p": dp_}


def truth():
    return {**truth_first(), **truth_second()}
