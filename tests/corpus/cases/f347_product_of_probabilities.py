"""The likelihood of a path as the product of its step probabilities in half: 16 steps are fine, 40 steps flush to zero, log 0.

Source: a classic (multiply probabilities instead of adding their logs)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("prod",),
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("dtype-underflow",),
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "sum of logs",
}


class Hop(nn.Module):
    def __init__(self, nodes=5):
        super().__init__()
        self.score = nn.Parameter(torch.randn(nodes, nodes) * 0.1)

    def forward(self, path):
        p = self.score.softmax(-1)
        return p[path[:, :-1], path[:, 1:]]


def build(fixed: bool = False):
    torch.manual_seed(364)
    net = Hop().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(365)
    lengths = [5, 8, 7, 40, 6, 8]

    def step(i):
        path = torch.randint(0, 5, (6, lengths[i]), generator=gen)
        opt.zero_grad()
        p = net(path)
        if fixed:
            nll = -p.float().log().sum(-1)
        else:
            likelihood = p.prod(-1)  # ALSO
            nll = -torch.log(likelihood)  # ORIGIN
        loss = nll.mean() / lengths[i]
        loss.backward()
        opt.step()
        return loss

    return net, step
