"""Air-quality forecast: a station was offline, its readings are NaN in the table, and the encoder takes them as they are."""

import torch
from torch import nn

META = {
    "origin_op": "convolution",
    "also_ops": ("conv1d", "mkldnn_convolution", "index_put_", "fill_", "masked_fill_"),
    "phase": "data",
    "cause": "nan-in-input",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "fill the gap and give the model a mask channel",
}


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(4, 12, 3, padding=2, dilation=2)
        self.c2 = nn.Conv1d(12, 12, 3, padding=4, dilation=4)
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        h = torch.relu(self.c1(x))  # ORIGIN
        h = torch.relu(self.c2(h))
        return self.out(h[..., -1]).squeeze(-1)


def load_station_data(gen):
    table = torch.randn(4, 240, generator=gen).cumsum(1) * 0.1
    table[2, 110:118] = float("nan")  # DATA
    return table


def build(fixed: bool = False):
    torch.manual_seed(70)
    net = TCN()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(170)
    table = load_station_data(gen)
    if fixed:
        table = torch.nan_to_num(table)
    starts = [[0, 20, 40], [60, 5, 140], [150, 160, 70], [30, 95, 180], [10, 170, 55], [77, 145, 190]]

    def step(i):
        x = torch.stack([table[:, s : s + 24] for s in starts[i]])
        y = torch.stack([table[0, s + 24] for s in starts[i]])
        opt.zero_grad()
        loss = nn.functional.huber_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
