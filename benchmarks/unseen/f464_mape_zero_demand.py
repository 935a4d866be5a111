"""A decorated MAPE loss: a day without sales divides by zero."""
import functools

import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "forward", "cause": "div-by-zero", "symptom": "loss-inf",
    "first_bad_step": 2, "n_steps": 4, "fix": "clamp the denominator",
}


def reduced(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs).mean()

    return wrapper


@reduced
def mape(pred, true, low=None):
    scale = true.abs() if low is None else true.abs().clamp_min(low)
    return torch.abs(
        (true - pred)  # ORIGIN
        / scale  # ALSO
    )


@reduced
def pinball(pred, true, q=0.9):
    e = true - pred
    return torch.maximum(q * e, (q - 1) * e)


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(2, 12, batch_first=True), nn.Linear(12, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1]).squeeze(-1)


def build(fixed=False):
    torch.manual_seed(129)
    net = Demand()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(130)

    def step(i):
        x = torch.randn(8, 10, 2, generator=gen)
        y = torch.randint(1, 20, (8,), generator=gen).float()
        if i == 2:
            y[3] = 0.0
        pred = net(x)
        loss = mape(pred, y, 1.0 if fixed else None) + 0.1 * pinball(pred, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
