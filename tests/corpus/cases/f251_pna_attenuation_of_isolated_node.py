"""Principal neighbourhood aggregation: the attenuation scaler is delta over log(degree + 1), infinite for a node
without edges whose message is zero.
"""

import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "also_ops": ("div", "mul"),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("zero-times-inf",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "count at least one neighbour",
}


class PNA(nn.Module):
    def __init__(self, dim, floor):
        super().__init__()
        self.pre, self.post = nn.Linear(dim, dim), nn.Linear(3 * dim, dim)
        self.floor = floor
        self.register_buffer("delta", torch.tensor(1.2))

    def forward(self, x, src, dst):
        n = x.shape[0]
        agg = torch.zeros_like(x).index_add(0, dst, self.pre(x)[src])
        deg = torch.zeros(n).index_add(0, dst, torch.ones(len(dst))).clamp(min=self.floor)
        log_deg = (deg + 1).log().unsqueeze(-1)
        scaled = [agg, agg * (log_deg / self.delta), agg * (self.delta / log_deg)]  # ORIGIN
        return x + self.post(torch.cat(scaled, -1)).relu()


class Net(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.layers = nn.ModuleList(PNA(6, 1.0 if fixed else 0.0) for _ in range(2))
        self.out = nn.Linear(6, 1)

    def forward(self, x, src, dst):
        for layer in self.layers:
            x = layer(x, src, dst)
        return self.out(x.mean(0))


def build(fixed: bool = False):
    torch.manual_seed(684)
    net = Net(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(689)

    def step(i):
        opt.zero_grad()
        src = torch.randint(0, 9, (24,), generator=gen)
        dst = torch.cat([torch.arange(9), torch.randint(0, 9, (15,), generator=gen)])
        if i == 2:
            dst[dst == 7] = 0
        loss = net(torch.randn(9, 6, generator=gen), src, dst).square().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
