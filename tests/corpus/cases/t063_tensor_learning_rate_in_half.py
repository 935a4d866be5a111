"""The learning rate is a float16 tensor of 1e-8, which rounds to zero: the optimizer runs, and the weights stay where they were."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "also_ops": ("mul", "sub_", "mul_"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "dtype-underflow",
    "also_causes": ("learning-rate", "absorbed-update"),
    "symptom": "silent-zero-update",
    "first_bad_step": 0,
    "n_steps": 4,
    "watch": "update:0.weight",
    "fix": "keep rate and weights in float32",
}


def build(fixed: bool = False):
    torch.manual_seed(463)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    gen = torch.Generator().manual_seed(563)
    rate = torch.tensor(1e-8)
    dtype = torch.float32 if fixed else torch.float16
    total = 1e6  # losses are summed over a million simulated events

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        net.zero_grad()
        loss = total * nn.functional.mse_loss(net(x), x[:, :2])
        loss.backward()
        with torch.no_grad():
            small = rate.to(dtype)  # ORIGIN
            for p in net.parameters():
                p.sub_(small.float() * p.grad)  # ALSO
        return loss

    return net, step
