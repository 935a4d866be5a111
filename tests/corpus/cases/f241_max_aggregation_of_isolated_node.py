"""Max over neighbours starts from -inf; a node nobody points to keeps the -inf and the next linear layer mixes it."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "addmm",
    "also_ops": ("mm", "linear", "full_like", "full"),
    "phase": "forward",
    "cause": "inf-minus-inf",
    "also_causes": ("zero-times-inf", "empty-reduction"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "start from a finite number, or put zero where nothing arrived",
}


class MaxConv(nn.Module):
    def __init__(self, cin, cout, start):
        super().__init__()
        self.lin_l, self.lin_r, self.start = nn.Linear(cin, cout), nn.Linear(cin, cout, bias=False), start

    def forward(self, x, edges):
        src, dst = edges
        pooled = torch.full_like(x, self.start)  # ALSO
        pooled = pooled.scatter_reduce(0, dst[:, None].expand(-1, x.shape[1]), x[src], "amax")
        return self.lin_l(pooled) + self.lin_r(x)  # ORIGIN


class Net(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.a, self.b = MaxConv(5, 8, start), MaxConv(8, 2, start)

    def forward(self, x, edges):
        return self.b(torch.relu(self.a(x, edges)), edges)


def build(fixed: bool = False):
    torch.manual_seed(705)
    net = Net(-100.0 if fixed else -torch.inf)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(710)

    def step(i):
        opt.zero_grad()
        dst = torch.arange(14) % 7
        if i == 2:
            dst[dst == 4] = 5
        edges = torch.stack([torch.randint(0, 7, (14,), generator=gen), dst])
        loss = F.cross_entropy(net(torch.randn(7, 5, generator=gen), edges), torch.arange(7) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
