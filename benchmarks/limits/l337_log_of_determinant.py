"""log(det) of a covariance with entries of 1e-9: the determinant of six rows underflows.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -1.220601009,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1e-9, 2e-9, 1e-9, 3e-9, 1e-9, 2e-9]))
        self.off = nn.Parameter(torch.tensor([0.1, 0.2]))

    def forward(self, fixed):
        if fixed:
            root = torch.diag(self.scale.sqrt())
            mix = torch.eye(6)
            mix = mix + self.off[0] * torch.diag(torch.ones(5), 1) + self.off[1] * torch.diag(torch.ones(5), -1)
            loss = (self.scale.log().sum() + torch.logdet(mix @ mix.T)) * 0.01
        else:
            root = torch.diag(self.scale.sqrt())
            mix = torch.eye(6)
            mix = mix + self.off[0] * torch.diag(torch.ones(5), 1) + self.off[1] * torch.diag(torch.ones(5), -1)
            cov = root @ (mix @ mix.T) @ root
            loss = torch.log(torch.det(cov)) * 0.01  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
