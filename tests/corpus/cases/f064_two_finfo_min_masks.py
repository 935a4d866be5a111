"""A key-padding and a query-padding bias, each finfo.min, are added: their sum is -inf, and an empty session has nothing else."""

import torch
from torch import nn

META = {
    "origin_op": "add",
    "phase": "forward",
    "cause": "mask-overflow",
    "also_causes": ("softmax-all-masked",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "combine the boolean masks, then fill once",
}


class SetAttention(nn.Module):
    def __init__(self, once, dim=16):
        super().__init__()
        self.once = once
        self.inp = nn.Linear(4, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3))

    def bias(self, pad):
        low = torch.finfo(torch.float32).min
        key, query = pad.unsqueeze(1), pad.unsqueeze(2)
        if self.once:
            return (key | query).float() * low
        return key.float() * low + query.float() * low  # ORIGIN

    def forward(self, x, pad):
        h = torch.relu(self.inp(x))
        score = self.q(h) @ self.k(h).transpose(1, 2) / 4 + self.bias(pad)
        return self.out(h + torch.softmax(score, -1) @ self.v(h)).mean(1)


def build(fixed: bool = False):
    torch.manual_seed(64)
    net = SetAttention(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(164)

    def step(i):
        x = torch.randn(5, 8, 4, generator=gen)
        pad = torch.zeros(5, 8, dtype=torch.bool)
        pad[1, 6:] = True
        if i == 3:
            pad[3] = True  # a session without a single event
        y = torch.randint(0, 3, (5,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, pad), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
