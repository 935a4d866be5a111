"""A pointer network masks visited cities; decoding one step too many leaves no city, and log_softmax sees only -inf."""

import torch
from torch import nn

META = {
    "origin_op": "_log_softmax",
    "phase": "forward",
    "cause": "softmax-all-masked",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "stop when every city is visited",
}


class Pointer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(2, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.cell = nn.GRUCell(dim, dim)
        self.query = nn.Linear(dim, dim)

    def forward(self, cities, tour):
        h = self.enc(cities)
        state = h.mean(1)
        visited = torch.zeros(cities.shape[:2], dtype=torch.bool)
        total = 0.0
        for choice in tour.unbind(1):
            score = (h @ self.query(state).unsqueeze(-1)).squeeze(-1)
            logp = torch.log_softmax(score.masked_fill(visited, float("-inf")), -1)  # ORIGIN
            total = total + logp.gather(1, choice.unsqueeze(1)).squeeze(1)
            visited = visited.scatter(1, choice.unsqueeze(1), True)
            state = self.cell(h[torch.arange(h.shape[0]), choice], state)
        return -total.mean()


def build(fixed: bool = False):
    torch.manual_seed(33)
    net = Pointer()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(133)

    def step(i):
        cities = torch.rand(6, 5, 2, generator=gen)
        tour = torch.stack([torch.randperm(5, generator=gen) for _ in range(6)])
        if i == 3 and not fixed:
            tour = torch.cat([tour, tour[:, :1]], 1)  # closed tours: back to the start
        opt.zero_grad()
        loss = net(cities, tour)
        loss.backward()
        opt.step()
        return loss

    return net, step
