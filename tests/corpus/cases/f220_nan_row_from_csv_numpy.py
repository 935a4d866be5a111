"""A tabular transformer reads a numpy table with a missing cell into its layer norm."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "native_layer_norm",
    "also_ops": ("layer_norm",),
    "phase": "data",
    "cause": "nan-in-input",
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "impute the mean",
}


def read(impute):
    x = np.random.default_rng(5).normal(size=(24, 6)).astype("float32")
    x[13, 4] = np.nan  # DATA
    return torch.from_numpy(np.nan_to_num(x) if impute else x)


class Tab(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.lin = nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, x):
        return self.lin(self.norm(x))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(511)
    net = Tab()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x = read(fixed)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x[8 * (i % 3) : 8 * (i % 3) + 8]), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
