"""The loader standardises each feature over its chunk; one chunk has a constant column and the feature arrives as NaN."""

import torch
from torch import nn

META = {
    "origin_op": "addmm",
    "also_ops": ("div", "linear"),
    "phase": "data",
    "cause": "nan-in-input",
    "also_causes": ("std-of-constant", "div-by-zero"),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "use the statistics of the whole training set, with a floor",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 24), nn.Linear(24, 24)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        h = torch.relu(self.first(x))  # ORIGIN
        return self.head(torch.relu(self.second(h))).squeeze(-1)


def standardise(chunk, floor):
    return (chunk - chunk.mean(0)) / chunk.std(0).clamp_min(floor)  # DATA


def chunks(count, floor):
    gen = torch.Generator().manual_seed(197)
    for k in range(count):
        chunk = torch.randn(16, 5, generator=gen)
        chunk[:, 3] = 1.0 if k == 4 else (chunk[:, 3] > 0).float()  # a flag that is always set
        yield standardise(chunk, floor), chunk[:, 0]


def build(fixed: bool = False):
    torch.manual_seed(97)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    loader = list(chunks(7, 1e-3 if fixed else 0.0))

    def step(i):
        x, y = loader[i]
        opt.zero_grad()
        loss = nn.functional.huber_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
