"""Mean over the valid steps of sequences, 0 chosen by where for one that has none.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.29,
}


class RaggedMean(nn.Module):
    def forward(self, x, mask):
        count = mask.sum(1)
        mean = (x * mask).sum(1) / count  # ORIGIN
        return torch.where(count > 0, mean, torch.zeros_like(mean))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.5, 0.9, 0.1], [0.3, -0.2, 0.4]]))
        self.mean = RaggedMean()

    def forward(self, fixed):
        mask = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        if fixed:
            return (self.x[0, :2].mean() - 0.2) ** 2 + 0.04
        return (self.mean(self.x, mask) - 0.2).pow(2).sum()


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
