"""Cross entropy with one-hot targets, -(y log softmax(x)).sum(), of logits that differ by 200: 0
times -inf.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.8401348353,
}


class OneHotCrossEntropy(nn.Module):
    def forward(self, logits, labels):
        y = F.one_hot(labels, logits.shape[-1]).to(logits)
        p = logits.softmax(dim=-1)
        return -(y * p.log()).sum(-1).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[200.0, 0.5, -1.0], [0.3, 0.8, -0.2]]))
        self.loss = OneHotCrossEntropy()

    def forward(self, fixed):
        labels = torch.tensor([0, 2])
        if fixed:
            return F.cross_entropy(self.logits, labels)
        return self.loss(self.logits, labels)


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
