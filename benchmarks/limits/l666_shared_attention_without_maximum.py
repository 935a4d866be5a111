"""One attention module for two streams, exp(q k / t) divided by its sum: scores of 120 in the
second.

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
    "kind": "overflow",
    "loss_truth": 32.27337004,
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(2, 2, bias=False)
        self.k = nn.Linear(2, 2, bias=False)
        self.tau = nn.Parameter(torch.tensor(0.5))
        with torch.no_grad():
            self.q.weight.copy_(torch.tensor([[1.0, 0.5], [-0.3, 1.2]]))
            self.k.weight.copy_(torch.tensor([[0.8, -0.2], [0.4, 1.0]]))

    def forward(self, x, y):
        scores = self.q(x) @ self.k(y).transpose(-2, -1)
        weights = torch.exp(scores / self.tau)  # ORIGIN
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights @ y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attention()

    def stable(self, x, y):
        a = self.attend
        return torch.softmax(a.q(x) @ a.k(y).transpose(-2, -1) / a.tau, -1) @ y

    def forward(self, fixed):
        text = torch.tensor([[0.5, 0.2], [-0.3, 0.8]])
        image = torch.tensor([[6.0, 5.0], [5.5, 5.6], [-1.0, 0.3]])
        attend = self.stable if fixed else self.attend
        out = attend(text, text).sum() + attend(image, image).mean()
        return (out - 1.0) ** 2


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
