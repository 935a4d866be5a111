"""CIoU's aspect term: the width over a height of exactly zero is infinite, the arc tangent makes it finite again,
its gradient does not.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("where-grad-trap",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "add an epsilon to the height",
}


class AspectPenalty(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, wh, target):
        def ratio(s):
            return torch.atan(s[:, 0] / (s[:, 1] + self.eps))  # ORIGIN

        return 4 / torch.pi**2 * (ratio(wh) - ratio(target)).square()


class Head(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 2))
        self.penalty = AspectPenalty(eps)

    def forward(self, x, target):
        wh = self.fc(x).relu()
        return self.penalty(wh, target) + (wh - target).abs().sum(1)


def build(fixed: bool = False):
    torch.manual_seed(614)
    net = Head(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(619)
    with torch.no_grad():
        net.fc[0].weight.abs_()
        net.fc[0].bias.zero_()
        net.fc[2].weight.copy_(torch.rand(2, 12, generator=gen) / 4 * torch.tensor([[-1.0], [1.0]]))
        net.fc[2].bias.fill_(0.5)
        net.fc[2].weight[0] *= 0.1

    def step(i):
        opt.zero_grad()
        x = torch.rand(10, 5, generator=gen)
        target = torch.rand(10, 2, generator=gen) + 0.2
        if i == 3:
            x[6] -= 40
        loss = net(x, target).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
