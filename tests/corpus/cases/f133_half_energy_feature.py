"""A keyword front end in half precision squares its filter outputs and takes log1p of the mean: the square of 300 overflows."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "pow",
    "also_ops": ("square",),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "compute the energy in float32",
}


class Energy(nn.Module):
    def __init__(self, upcast):
        super().__init__()
        self.upcast = upcast
        self.filters = nn.Conv1d(1, 8, 9, stride=4, padding=4)

    def forward(self, wave):
        h = self.filters(wave)
        h = h.float() if self.upcast else h
        energy = h.pow(2).mean(-1)  # ORIGIN
        return torch.log1p(energy).to(wave.dtype)


class Net(nn.Module):
    def __init__(self, upcast):
        super().__init__()
        self.front = Energy(upcast)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, wave):
        return self.head(self.front(wave))


def build(fixed: bool = False):
    torch.manual_seed(230)
    net = Net(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(730)

    def step(i):
        opt.zero_grad()
        wave = torch.randn(6, 1, 64, generator=gen)
        if i == 2:
            wave[3] = wave[3] * 900.0
        y = torch.randint(0, 2, (6,), generator=gen)
        loss = F.cross_entropy(net(wave.half()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
