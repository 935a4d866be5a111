"""A graph network averages over neighbours; a sampled subgraph contains a node without any edge, degree zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp the degree at one",
}


class SageLayer(nn.Module):
    def __init__(self, cin, cout, floor):
        super().__init__()
        self.floor = floor
        self.own, self.near = nn.Linear(cin, cout), nn.Linear(cin, cout, bias=False)

    def forward(self, x, edges):
        src, dst = edges
        total = torch.zeros_like(x).index_add(0, dst, x[src])
        degree = torch.zeros(x.shape[0]).index_add(0, dst, torch.ones(dst.shape[0]))
        mean = total / degree.clamp_min(self.floor).unsqueeze(1)  # ORIGIN
        return self.own(x) + self.near(mean)


class Sage(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.a, self.b, self.c = SageLayer(5, 16, floor), SageLayer(16, 16, floor), SageLayer(16, 3, floor)

    def forward(self, x, edges):
        h = torch.relu(self.a(x, edges))
        h = torch.relu(self.b(h, edges))
        return self.c(h, edges)


def build(fixed: bool = False):
    torch.manual_seed(8)
    net = Sage(1.0 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(108)

    def step(i):
        x = torch.randn(15, 5, generator=gen)
        ring = torch.arange(15)
        edges = torch.stack(
            [
                torch.cat([ring, torch.randint(0, 15, (20,), generator=gen)]),
                torch.cat([ring.roll(1), ring.repeat(2)[:20]]),
            ]
        )
        if i == 3:
            edges = edges[:, edges[1] != 9]  # nobody points at node 9
        y = torch.randint(0, 3, (15,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, edges), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
