"""A soft-DTW-like alignment sums paths by logsumexp over borders of -inf; the cell behind both borders is -inf throughout."""

import torch
from torch import nn

META = {
    "origin_op": "logsumexp",
    "also_ops": ("exp", "sub", "mul"),
    "phase": "backward",
    "cause": "softmax-all-masked",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "a border of -1e6",
}


class Aligner(nn.Module):
    def __init__(self, border):
        super().__init__()
        self.border = border
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(4, 8)

    def forward(self, x, y):
        score = self.a(x) @ self.b(y).t() / 8**0.5
        prev = torch.full((len(y) + 1,), self.border)
        prev = torch.cat([score.new_zeros(1), prev[1:]])
        for row in score:
            cells = [prev.new_full((), self.border)]
            for j, s in enumerate(row):
                ways = torch.stack([cells[-1], prev[j + 1], prev[j]])
                if j > 4:
                    ways = torch.stack([prev.new_full((), self.border) * s.sigmoid()] * 2)
                cells.append(torch.logsumexp(ways, 0) + s)  # ORIGIN
            prev = torch.stack(cells)
        return -prev[:5].exp().sum().log()


def build(fixed: bool = False):
    torch.manual_seed(252)
    net = Aligner(-1e3 if fixed else -torch.inf)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(752)

    def step(i):
        opt.zero_grad()
        x, y = torch.randn(4, 4, generator=gen), torch.randn(6, 4, generator=gen)
        loss = net(x, y)
        loss.backward()
        opt.step()
        return loss

    return net, step
