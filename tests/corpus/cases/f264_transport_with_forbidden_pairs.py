"""Transport cost as an einsum of plan and cost: a forbidden pair costs infinity and its share of the plan is zero."""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "also_ops": ("einsum", "sum", "bmm"),
    "phase": "forward",
    "cause": "zero-times-inf",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "a large finite cost",
}


class Matcher(nn.Module):
    def __init__(self, ceiling):
        super().__init__()
        self.a, self.b, self.ceiling = nn.Linear(3, 4), nn.Linear(3, 4), ceiling

    def forward(self, x, y, forbidden):
        score = self.a(x) @ self.b(y).T
        plan = torch.softmax(score.masked_fill(forbidden, -torch.inf), 1)
        cost = (x[:, None] - y[None]).square().sum(-1).masked_fill(forbidden, self.ceiling)
        return torch.einsum("ij,ij->", plan, cost)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1391)
    net = Matcher(1e4 if fixed else torch.inf)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1396)

    def step(i):
        opt.zero_grad()
        x, y = torch.randn(4, 3, generator=gen), torch.randn(5, 3, generator=gen)
        forbidden = torch.zeros(4, 5, dtype=torch.bool)
        if i >= 2:
            forbidden[1, 2] = forbidden[3, 0] = True
        loss = net(x, y, forbidden)
        loss.backward()
        opt.step()
        return loss

    return net, step
