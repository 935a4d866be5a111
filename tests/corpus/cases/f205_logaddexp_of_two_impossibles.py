"""A transducer joins two paths by logaddexp; a lattice corner has both at -inf, and its gradient is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "logaddexp",
    "also_ops": ("exp", "sub", "div", "add"),
    "phase": "backward",
    "cause": "softmax-all-masked",
    "also_causes": ("inf-minus-inf", "zero-times-inf"),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "a border of -1e4",
}


class Rnnt(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.low = low
        self.enc, self.dec = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, y):
        joint = (self.enc(x)[:, None] + self.dec(y)[None]).log_softmax(-1)
        blank, emit = joint[..., 0], joint[..., 1]
        row = torch.full((len(y),), self.low)
        row = torch.cat([row.new_zeros(1), row[1:]])
        for t in range(1, len(x)):
            stay = row + blank[t - 1]
            move = torch.cat([stay.new_full((1,), self.low), (row + emit[t - 1])[:-1]])
            row = torch.logaddexp(stay, move)  # ORIGIN
        return -row[1]


def build(fixed: bool = False):
    torch.manual_seed(422)
    net = Rnnt(-1e4 if fixed else -torch.inf)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(922)

    def step(i):
        opt.zero_grad()
        x, y = torch.randn(5, 4, generator=gen), torch.randn(4, 4, generator=gen)
        loss = net(x, y)
        loss.backward()
        opt.step()
        return loss

    return net, step
