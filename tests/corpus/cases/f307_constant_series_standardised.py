"""Series are standardised when the data set is made; one of them is constant, and its windows are NaN."""

import torch
from torch import nn

META = {
    "origin_op": "linear",
    "phase": "data",
    "cause": "nan-in-input",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "an epsilon on the standard deviation",
    "also_ops": ["addmm", "div"],
    "also_causes": ["std-of-constant", "div-by-zero"],
    "also_phase": "forward",
}


class NBeats(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.back, self.fore = nn.Linear(24, 10), nn.Linear(24, 3)

    def forward(self, x):
        h = self.body(x)  # ORIGIN
        return self.fore(h), x - self.back(h)


def standardise(series, eps):
    mean, std = series.mean(1, keepdim=True), series.std(1, keepdim=True)
    return (series - mean) / (std + eps)  # DATA


def build(fixed: bool = False):
    torch.manual_seed(881)
    gen = torch.Generator().manual_seed(882)
    series = torch.randn(12, 40, generator=gen).cumsum(1)
    series[9] = 3.0  # a shop that was closed
    series = standardise(series, 1e-6 if fixed else 0.0)
    net = NBeats()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    order = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [0, 4, 8], [1, 5, 10]])

    def step(i):
        s = int(torch.randint(0, 27, (1,), generator=gen))
        window = series[order[i], s : s + 13]
        opt.zero_grad()
        fore, rest = net(window[:, :10])
        loss = nn.functional.mse_loss(fore, window[:, 10:]) + 0.1 * rest.pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
