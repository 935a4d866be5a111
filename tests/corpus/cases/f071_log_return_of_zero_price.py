"""Prices come as log-returns from the loader; a missing quote stored as 0 makes two of them infinite."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("addmm", "linear", "cat", "sub", "diff", "mm", "_thnn_fused_lstm_cell", "lstm", "mkldnn_rnn_layer"),
    "phase": "data",
    "also_phase": "forward",
    "cause": "inf-in-input",
    "also_causes": ("log-of-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "carry the last quote forward",
}


class Trader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTMCell(1, 16)
        self.inp = nn.Linear(1, 1)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, returns):
        state = None
        for r in returns.unbind(1):
            state = self.rnn(self.inp(r.unsqueeze(1)), state)  # ORIGIN
        return self.head(state[0]).squeeze(-1)


def log_returns(price):
    logs = torch.log(price)  # DATA
    return logs[:, 1:] - logs[:, :-1]


def build(fixed: bool = False):
    torch.manual_seed(71)
    net = Trader()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(171)

    def step(i):
        price = 50 * torch.exp(0.02 * torch.randn(8, 12, generator=gen).cumsum(1))
        if i == 4:
            price[5, 6] = price[5, 5] if fixed else 0.0
        returns = log_returns(price)
        opt.zero_grad()
        loss = (net(returns[:, :-1]) - 10 * returns[:, -1]).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
