"""A pitch encoder writes semitones as 12 log2(f / 440); unvoiced frames carry frequency zero."""

import torch
from torch import nn

META = {
    "origin_op": "log2",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "select the voiced frames first",
}


class Pitch(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 12, batch_first=True)
        self.out = nn.Linear(12, 1)
        self.tuning = nn.Parameter(torch.tensor(440.0))

    def forward(self, f0):
        semitone = 12 * torch.log2(f0 / self.tuning)  # ORIGIN
        h, _ = self.gru(semitone[..., None] / 12)
        return self.out(h).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(402)
    net = Pitch()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(902)

    def step(i):
        opt.zero_grad()
        f0 = 100 + 200 * torch.rand(4, 10, generator=gen)
        if i >= 1:
            f0[2, 4:6] = 100.0 if fixed else 0.0
        loss = (net(f0) - 0.2).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
