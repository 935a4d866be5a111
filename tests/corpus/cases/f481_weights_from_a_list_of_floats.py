"""Task weights by the share of each loss, gathered as Python floats: once every loss is zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "an epsilon in the divisor",
}


class Balancer:
    def __init__(self, tasks, eps):
        self.recent = torch.zeros(tasks)
        self.eps = eps

    def weights(self, losses):
        self.recent = torch.stack([loss.detach() for loss in losses])
        shares = [(r / (self.recent.sum() + self.eps)).item() for r in self.recent]  # ORIGIN
        return torch.tensor(shares)


def build(fixed: bool = False):
    torch.manual_seed(0)
    trunk = nn.Linear(6, 10)
    heads = nn.ModuleList(nn.Linear(10, 1) for _ in range(3))
    net = nn.ModuleDict({"trunk": trunk, "heads": heads})
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    balancer = Balancer(3, 1e-8 if fixed else 0.0)
    gen = torch.Generator().manual_seed(2)

    def step(i):
        x = torch.randn(8, 6, generator=gen)
        present = torch.zeros(8, 1) if i == 3 else torch.ones(8, 1)
        hidden = trunk(x).relu()
        losses = [((head(hidden) - x[:, k : k + 1]) * present).pow(2).mean() for k, head in enumerate(heads)]
        loss = (balancer.weights(losses) * torch.stack(losses)).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
