"""A float32 count of the frames seen, resumed close to 2**24: one more frame no longer changes it, and the running mean drifts from the truth.

Source: the well-known limit of float32 counters (16777216 + 1 == 16777216)
"""
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "forward",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 3,
    "n_steps": 8,
    "watch": "update:norm.seen",
    "fix": "count in int64",
}


class OnlineNorm(nn.Module):
    def __init__(self, dim, whole):
        super().__init__()
        self.register_buffer("seen", torch.tensor(16777213, dtype=torch.int64) if whole else torch.tensor(16777213.0))
        self.register_buffer("mean", torch.zeros(dim))
        self.whole = whole

    def forward(self, frame):
        if self.training:
            self.seen += 1  # ORIGIN
            self.mean.add_((frame.detach().mean(0) - self.mean) / (self.seen.double() if self.whole else self.seen))
        return frame - self.mean


class Tracker(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.norm = OnlineNorm(6, whole)
        self.cell = nn.GRUCell(6, 12)
        self.out = nn.Linear(12, 2)

    def forward(self, frame, h):
        h = self.cell(self.norm(frame), h)
        return self.out(h), h


def build(fixed: bool = False):
    torch.manual_seed(350)
    net = Tracker(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(351)
    state = [torch.zeros(4, 12)]

    def step(i):
        frame = 1 + torch.randn(4, 6, generator=gen)
        opt.zero_grad()
        out, h = net(frame, state[0])
        loss = nn.functional.mse_loss(out, frame[:, :2])
        loss.backward()
        opt.step()
        state[0] = h.detach()
        return loss

    return net, step
