"""Mutual information from a joint soft histogram: log of an empty bin times its zero mass."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("log", "mul"),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("log-of-zero", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "an epsilon in both",
}


def soft_hist(a, b, centres, width):
    ka = torch.exp(-0.5 * ((a[:, None] - centres) / width) ** 2)
    kb = torch.exp(-0.5 * ((b[:, None] - centres) / width) ** 2)
    joint = ka.T @ kb
    return joint / joint.sum()


def mutual_information(joint, eps):
    outer = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    return (joint * torch.log((joint + eps) / (outer + eps))).sum()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2614)
    net = nn.Linear(1, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(2619)
    centres = torch.linspace(-2, 2, 5)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(0.1)

    def step(i):
        opt.zero_grad()
        x = torch.randn(64, generator=gen)
        bins = centres if i < 2 else torch.cat([centres[:-1], torch.tensor([60.0])])
        loss = -mutual_information(soft_hist(net(x[:, None])[:, 0], x, bins, 0.5), 1e-8 if fixed else 0.0)
        loss.backward()
        opt.step()
        return loss

    return net, step
