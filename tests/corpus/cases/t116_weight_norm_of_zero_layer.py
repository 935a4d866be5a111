"""A last layer initialised to zero, then weight-normalised: its direction has norm zero."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

META = {
    "origin_op": "_weight_norm_interface",
    "also_ops": ("_weight_norm", "div", "mul"),
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "initialise the layer with small values",
}


class Flow(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.body = nn.Sequential(weight_norm(nn.Linear(6, 16)), nn.ELU())
        last = nn.Linear(16, 6)
        nn.init.normal_(last.weight, std=gain)
        nn.init.zeros_(last.bias)
        self.last = weight_norm(last)

    def forward(self, x):
        h = self.body(x)
        return x + self.last(h)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(616)
    net = Flow(1e-3 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(716)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x.flip(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
