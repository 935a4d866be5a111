"""Two faults in one step: box-cox transform (y^l - 1) / l with the exponent started at 0, where it is log y;
and log(1 - d) of a discriminator that is certain: 1 - sigmoid(110) is 0 in float32.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["div", "log"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": -36.59546495,
}


class Transform(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Parameter(torch.tensor(0.0))
        self.shift = nn.Parameter(torch.tensor(0.3))

    def forward(self, fixed):
        y = torch.tensor([0.5, 1.7, 3.0, 0.9])
        if fixed:
            u = self.l * torch.log(y)
            z = torch.log(y) * (1 + u / 2 + u**2 / 6)
        else:
            z = (y**self.l - 1) / self.l  # ORIGIN
        loss = (z - self.shift).pow(2).mean()
        return loss


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Parameter(torch.tensor([110.0, 0.3, -1.0]))

    def forward(self, fixed):
        if fixed:
            loss = nn.functional.logsigmoid(-self.d).mean()
        else:
            loss = torch.log(1 - torch.sigmoid(self.d)).mean()  # ORIGIN
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Transform()
        self.second = Critic()

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
    l = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    shift = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.5, 1.7, 3.0, 0.9])
    u = l * torch.log(y)
    z = torch.log(y) * (1 + u / 2 + u**2 / 6)
    loss = (z - shift).pow(2).mean()
    dl_, dshift_ = torch.autograd.grad(loss, [l, shift])
    return {"first.l": dl_, "first.shift": dshift_}


def truth_second():
    d = torch.tensor([110.0, 0.3, -1.0], dtype=torch.float64, requires_grad=True)
    loss = nn.functional.logsigmoid(-d).mean()
    dd_, = torch.autograd.grad(loss, [d])
    return {"second.d": dd_}


def truth():
    return {**truth_first(), **truth_second()}
