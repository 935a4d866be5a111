"""A trust ratio worked out by hand and written into the optimizer: a layer without gradient makes it 0 / 0."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "div-by-zero",
    "also_causes": ["optimizer-arithmetic"],
    "symptom": "param-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "an epsilon in the divisor",
}


def build(fixed: bool = False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.SGD([{"params": layer.parameters()} for layer in (net[0], net[2])], lr=0.1)
    eps = 1e-6 if fixed else 0.0
    gen = torch.Generator().manual_seed(3)

    def set_rates():
        for group in opt.param_groups:
            weight = group["params"][0]
            ratio = (weight.grad * 0.05).norm() / (weight.grad.norm() + eps)  # ORIGIN
            group["lr"] = ratio.item()

    def step(i):
        x = torch.randn(16, 5, generator=gen)
        if i == 2:
            x = torch.zeros_like(x)
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        set_rates()
        opt.step()
        return loss

    return net, step
