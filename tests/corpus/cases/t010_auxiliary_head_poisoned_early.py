"""The auxiliary head is poisoned at step 3 by the root of an exact zero; the main loss uses that head from step 6 on, and only then is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 9,
    "fix": "an epsilon under the root",
}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 24), nn.Tanh())
        self.main, self.aux = nn.Linear(24, 3), nn.Linear(24, 3)

    def forward(self, x, blend):
        h = self.trunk(x)
        return self.main(h) + self.aux(h) if blend else self.main(h)

    def smoothness(self, x, eps):
        out = self.aux(self.trunk(x).detach())
        return torch.sqrt((out[1:] - out[:-1]).square().sum(-1) + eps).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(410)
    net = TwoHeads()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(510)
    eps = 1e-10 if fixed else 0.0

    def step(i):
        x = torch.randn(10, 6, generator=gen)
        y = torch.randint(0, 3, (10,), generator=gen)
        if i == 3:
            x[4] = x[5]  # the same record twice in a row
        opt.zero_grad()
        main = nn.functional.cross_entropy(net(x, blend=i >= 6), y)
        auxiliary = 0.1 * net.smoothness(x, eps)
        main.backward()
        if i < 6:
            auxiliary.backward()
        opt.step()
        return main

    return net, step
