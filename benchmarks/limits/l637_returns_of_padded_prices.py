"""Log returns of prices that end in padding of 0, removed by a mask afterwards: 0 times NaN.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.005953696582,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.price = nn.Parameter(torch.tensor([[1.0, 1.1, 1.05, 1.2], [2.0, 2.1, 0.0, 0.0]]))
        self.drift = nn.Parameter(torch.tensor(0.02))

    def forward(self, fixed):
        mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
        if fixed:
            keep = mask.bool()
            ratio = torch.where(keep, self.price[:, 1:], torch.ones(())) / torch.where(
                keep, self.price[:, :-1], torch.ones(())
            )
            returns = torch.log(ratio)
        else:
            returns = torch.log(self.price[:, 1:] / self.price[:, :-1])  # ORIGIN
        return (mask * (returns - self.drift) ** 2).sum() / mask.sum()


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
