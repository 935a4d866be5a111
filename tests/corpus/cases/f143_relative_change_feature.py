"""Percentage changes are computed by numpy when the data set is built; a zero base value gives inf, standardised by the loader."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

META = {
    "origin_op": "addmm",
    "also_ops": ("linear", "sub", "div", "native_layer_norm"),
    "phase": "data",
    "cause": "inf-in-input",
    "also_causes": ("nan-in-input",),
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "floor the base value",
}


def changes(floor):
    rng = np.random.default_rng(4)
    level = rng.integers(1, 50, size=(32, 7)).astype("float32")
    level[11, 2] = 0.0
    with np.errstate(divide="ignore"):
        rel = np.diff(level, axis=1) / np.maximum(level[:, :-1], floor)  # DATA
    return torch.from_numpy(rel), torch.from_numpy(level[:, 0] / 50)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.seq(x).squeeze(-1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(241)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    loader = list(DataLoader(TensorDataset(*changes(0.5 if fixed else 0.0)), batch_size=8))

    def step(i):
        opt.zero_grad()
        x, y = loader[i]
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
