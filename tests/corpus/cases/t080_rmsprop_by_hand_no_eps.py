"""A hand-written RMSprop divides by the root of the mean square without an epsilon; a unit that never fires divides zero by zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "add 1e-8",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 12), nn.Linear(12, 2)
        nn.init.constant_(self.a.bias[:3], -40.0)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def build(fixed: bool = False):
    torch.manual_seed(401)
    net = Net()
    eps = 1e-8 if fixed else 0.0
    square = {p: torch.zeros_like(p) for p in net.parameters()}
    gen = torch.Generator().manual_seed(901)

    def step(i):
        x = torch.randn(10, 4, generator=gen)
        net.zero_grad()
        loss = F.cross_entropy(net(x), torch.arange(10) % 2)
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                square[p].mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
                update = p.grad / (square[p].sqrt() + eps)  # ORIGIN
                p.sub_(1e-3 * update)
        return loss

    return net, step
