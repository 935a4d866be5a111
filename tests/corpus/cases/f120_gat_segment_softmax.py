"""A graph attention layer computes its softmax per target node by exp and index_add without subtracting the maximum."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "subtract the maximum per target node (scatter_reduce amax)",
}


class GAT(nn.Module):
    def __init__(self, cin, cout, stable):
        super().__init__()
        self.lin = nn.Linear(cin, cout, bias=False)
        self.att = nn.Linear(2 * cout, 1, bias=False)
        self.stable = stable

    def forward(self, x, src, dst):
        h = self.lin(x)
        e = F.leaky_relu(self.att(torch.cat([h[src], h[dst]], -1)), 0.2).squeeze(-1)
        if self.stable:
            top = torch.full((len(x),), -1e30).scatter_reduce(0, dst, e.detach(), "amax")
            e = e - top[dst]
        w = torch.exp(e)  # ORIGIN
        total = torch.zeros(len(x)).index_add(0, dst, w)
        alpha = w / (total[dst] + 1e-16)
        return torch.zeros_like(h).index_add(0, dst, alpha[:, None] * h[src])


class Graph(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.a, self.b = GAT(4, 16, stable), GAT(16, 3, stable)

    def forward(self, x, src, dst):
        return self.b(F.elu(self.a(x, src, dst)), src, dst)


def build(fixed: bool = False):
    torch.manual_seed(214)
    net = Graph(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(714)

    def step(i):
        opt.zero_grad()
        n = 12
        src = torch.cat([torch.arange(n), torch.randint(0, n, (30,), generator=gen)])
        dst = torch.cat([torch.arange(n), torch.randint(0, n, (30,), generator=gen)])
        x = torch.randn(n, 4, generator=gen)
        if i >= 2:
            x[3:6] = x[3:6] * 3e4  # hubs with raw counts
        loss = F.cross_entropy(net(x, src, dst), torch.arange(n) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
