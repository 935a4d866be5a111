"""A two-layer LSTM forecaster with a linear skip path is trained by momentum SGD without clipping; the weights run away within steps."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "exploding-gradient",
    "also_causes": ("learning-rate",),
    "symptom": "loss-inf",
    "first_bad_step": 5,
    "n_steps": 50,
    "oracle": "drift",
    "fix": "clip the gradient norm to 1 before the step, and a tenth of the learning rate",
}


class Forecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(3, hidden, num_layers=2, batch_first=True)
        self.up = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden + 3, 3)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.head(torch.cat([torch.relu(self.up(h[:, -1])), x[:, -1]], -1))


def build(fixed: bool = False):
    torch.manual_seed(402)
    net = Forecaster()
    opt = torch.optim.SGD(net.parameters(), lr=0.01 if fixed else 1.0, momentum=0.9)
    gen = torch.Generator().manual_seed(502)

    def step(i):
        walk = torch.randn(8, 21, 3, generator=gen).cumsum(1)
        opt.zero_grad()
        forecast = net(walk[:, :-1])  # FIRST
        loss = nn.functional.mse_loss(forecast, walk[:, -1])  # FIRST
        loss.backward()
        if fixed:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()  # ORIGIN
        return loss

    return net, step
