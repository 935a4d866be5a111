"""RankNet: P = 1 / (1 + exp(-(s_i - s_j))) of all pairs of a query, and cross entropy -t log P -
(1 - t) log(1 - P); two scores are far apart.

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
    "kind": "overflow",
    "loss_truth": 41.4879893722,
}


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))

    def forward(self, documents):
        return self.net(documents).squeeze(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scorer = Scorer()

    def forward(self, fixed):
        documents = torch.tensor(
            [[0.2, 0.1, 0.4], [900.0, -700.0, 1700.0], [0.3, -0.6, 0.1], [1.0, 0.9, -0.2]]
        )
        relevance = torch.tensor([2.0, 0.0, 1.0, 2.0])
        s = self.scorer(documents)
        difference = s[:, None] - s[None, :]
        t = 0.5 * (1 + torch.sign(relevance[:, None] - relevance[None, :]))
        if fixed:
            return nn.functional.binary_cross_entropy_with_logits(difference, t)
        p = 1 / (1 + torch.exp(-difference))
        return (-t * torch.log(p) - (1 - t) * torch.log(1 - p)).mean()  # ORIGIN


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(0.9 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
    return {name: p.grad for name, p in net.named_parameters()}
