"""Snake activation x + sin(a x)^2 / a with one channel whose learned frequency is 0.

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
    "kind": "removable",
    "loss_truth": 0.2272238389,
}


class Snake(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([0.0, 1.3]))

    def forward(self, x):
        return x + torch.sin(self.alpha * x).pow(2) / self.alpha  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.4, -0.7], [1.1, 0.6]]))
        self.act = Snake()

    def forward(self, fixed):
        x, a = self.x, self.act.alpha
        if fixed:
            second = x[:, 1] + torch.sin(a[1] * x[:, 1]).pow(2) / a[1]
            out = torch.stack([x[:, 0] + a[0] * x[:, 0] ** 2, second], 1)
        else:
            out = self.act(x)
        return (out - torch.tensor([[0.3, 0.2], [0.9, 1.0]])).pow(2).sum()


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
