"""Quaternions q / |q|; a joint that is not tracked is zero and its error is masked by
multiplication.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.408077265,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 4, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[1.0, 0.2], [0.1, -0.3], [0.5, 0.5], [-0.2, 0.8]]))

    def forward(self, fixed):
        x = torch.tensor([[1.0, 0.5], [0.0, 0.0], [-0.3, 0.7]])
        goal = torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 3)
        tracked = torch.tensor([1.0, 0.0, 1.0])
        if fixed:
            q = self.fc(x[tracked > 0])
            q = q / q.norm(dim=1, keepdim=True)
            return ((q - goal[:2]) ** 2).sum() / 2
        q = self.fc(x)
        q = q / torch.sqrt((q * q).sum(dim=1, keepdim=True))  # ORIGIN
        return (((q - goal) ** 2).sum(1) * tracked).sum() / tracked.sum()


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
