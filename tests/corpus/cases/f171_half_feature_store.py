"""Features were stored as float16 by numpy: a revenue of a hundred thousand became inf on disk."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "addmm",
    "also_ops": ("linear", "sub", "mul", "mean"),
    "phase": "data",
    "cause": "inf-in-input",
    "symptom": "grad-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "store float32",
}


def store(dtype):
    rng = np.random.default_rng(8)
    x = rng.normal(size=(32, 5)).astype("float32")
    x[9, 2] = 1e5
    with np.errstate(over="ignore"):
        return torch.from_numpy(x.astype(dtype).astype("float32"))  # DATA


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))).squeeze(-1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(314)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    x = store("float32" if fixed else "float16")

    def step(i):
        opt.zero_grad()
        rows = x[8 * i : 8 * i + 8]
        loss = F.mse_loss(net(rows), rows[:, 0])
        loss.backward()
        opt.step()
        return loss

    return net, step
