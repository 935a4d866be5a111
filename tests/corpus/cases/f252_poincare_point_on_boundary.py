"""A Poincare embedding is projected to the ball by its norm; in float32 the projected point has norm one and 1 -
|x|^2 is zero.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "project to radius 1 - 1e-3",
}


class Ball(nn.Embedding):
    def project(self, margin):
        with torch.no_grad():
            norm = self.weight.norm(dim=1, keepdim=True)
            self.weight.copy_(torch.where(norm >= 1 - margin, self.weight / norm * (1 - margin), self.weight))


def distance(x, y):
    gap = (x - y).square().sum(-1)
    room = (1 - x.square().sum(-1)) * (1 - y.square().sum(-1))
    return torch.acosh(1 + 2 * gap / room + 1e-6)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(914)
    net = Ball(10, 3)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(919)
    margin = 1e-3 if fixed else 1e-9
    with torch.no_grad():
        net.weight.mul_(0.2)

    def step(i):
        opt.zero_grad()
        net.project(margin)
        u = torch.randint(0, 10, (8,), generator=gen)
        if i == 2:
            with torch.no_grad():
                net.weight[4] = torch.tensor([3.0, 0.0, 0.0])
            net.project(margin)
            u[0] = 4
        loss = distance(net(u), net((u + 5) % 10)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
