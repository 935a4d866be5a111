"""A clinical LSTM gets laboratory values as they are in the table; from the third batch on one patient lacks a measurement."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "addmm",
    "also_ops": ("lstm", "mkldnn_rnn_layer", "mm", "linear", "t"),
    "phase": "data",
    "cause": "nan-in-input",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "impute by zero after standardising",
}


class Ward(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 16, batch_first=True)
        self.risk = nn.Linear(16, 1)

    def forward(self, series):
        _out, (h, _c) = self.lstm(series)  # ORIGIN
        return self.risk(h[-1]).squeeze(-1)


def table(gen):
    rows = torch.randn(40, 6, 4, generator=gen)
    rows[17, 2, 3] = float("nan")  # DATA
    return rows, (rows[:, 0, 0] > 0).float()


def build(fixed: bool = False):
    torch.manual_seed(240)
    net = Ward()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(740)
    rows, label = table(gen)
    if fixed:
        rows = rows.nan_to_num()

    def step(i):
        opt.zero_grad()
        batch = slice(8 * i, 8 * i + 8)
        logit = net(rows[batch])
        loss = F.binary_cross_entropy_with_logits(logit, label[batch])
        loss.backward()
        opt.step()
        return loss

    return net, step
