"""A learnable filterbank with power-law compression (x ** 0.3): digital silence has energy zero, where the slope is infinite."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "an offset before the power",
}


class Frontend(nn.Module):
    def __init__(self, offset, bands=8, taps=16):
        super().__init__()
        self.offset = offset
        self.filters = nn.Conv1d(1, bands, taps, stride=4, bias=False)
        self.pool = nn.AvgPool1d(4)

    def forward(self, wave):
        energy = self.pool(self.filters(wave.unsqueeze(1)).square())
        return (energy + self.offset) ** 0.3  # ORIGIN


class Keyword(nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.front = Frontend(offset)
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.out = nn.Linear(16, 5)

    def forward(self, wave):
        h, _ = self.rnn(self.front(wave).transpose(1, 2))
        return self.out(h[:, -1])


def build(fixed: bool = False):
    torch.manual_seed(18)
    net = Keyword(1e-5 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(118)

    def step(i):
        wave = torch.randn(5, 160, generator=gen)
        if i == 3:
            wave[1, 90:] = 0.0  # zero padding after the word
        y = torch.randint(0, 5, (5,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(wave), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
