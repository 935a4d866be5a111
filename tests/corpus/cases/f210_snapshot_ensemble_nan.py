"""An averaged checkpoint sums weights of runs, one of which had diverged to inf in its norm layer."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "native_layer_norm",
    "also_ops": ("copy_", "mul"),
    "phase": "init",
    "cause": "poisoned-parameter",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "leave that run out",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.b = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.b(torch.relu(self.n(self.a(x))))  # ORIGIN


def averaged(good):
    torch.manual_seed(1)
    runs = [Net().state_dict() for _ in range(3)]
    if not good:
        runs[1]["n.weight"][2] = float("inf")  # DATA
    net = Net()
    net.load_state_dict({k: sum(r[k] for r in runs) / 3 for k in runs[0]})  # ALSO
    return net


def build(fixed: bool = False):
    torch.manual_seed(427)
    net = averaged(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(927)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 5, generator=gen)
        loss = F.cross_entropy(net(x), torch.arange(6) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
