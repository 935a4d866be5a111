"""A spatial bias multiplies hop distances by a learned adjacency; unreachable pairs have distance inf and adjacency zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "zero-times-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "cap the distances",
}


class Bias(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(5, 5, bias=False)
        self.out = nn.Linear(5, 1)

    def forward(self, x, dist):
        adj = torch.relu(torch.tanh(self.w(x) @ x.t()))
        adj = adj * torch.isfinite(dist)
        cost = adj * dist  # ORIGIN
        return self.out(torch.softmax(-cost, -1) @ x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(405)
    net = Bias()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(905)
    dist = torch.full((6, 6), float("inf"))
    dist[:3, :3] = 1.0
    dist[3:, 3:] = 2.0
    if fixed:
        dist = dist.clamp(max=50.0)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 5, generator=gen)
        loss = F.mse_loss(net(x, dist), x[:, 0])
        loss.backward()
        opt.step()
        return loss

    return net, step
