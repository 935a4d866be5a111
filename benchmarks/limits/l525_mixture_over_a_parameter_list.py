"""Log of a mixture of Gaussians over a list of centres, at a point far from all of them.

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
    "loss_truth": 289.1726376,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.ParameterList([torch.tensor(0.0), torch.tensor(1.0), torch.tensor(-2.0)])
        self.weight = nn.Parameter(torch.tensor([0.2, 0.5, 0.3]))

    def forward(self, fixed):
        x = torch.tensor([0.4, 25.0])
        if fixed:
            mu = torch.stack(list(self.mu))
            return -torch.logsumexp(self.weight.log()[:, None] - (x - mu[:, None]) ** 2 / 2, 0).sum()
        parts = [w * torch.exp(-((x - m) ** 2) / 2) for w, m in zip(self.weight, self.mu)]
        return -torch.stack(parts).sum(0).log().sum()  # ORIGIN


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
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
