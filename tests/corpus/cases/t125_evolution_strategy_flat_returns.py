"""Evolution strategies without autograd: every member of the population times out with the same return, whose spread is zero."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

META = {
    "origin_op": "div",
    "phase": "forward",
    "also_phase": "optimizer",
    "cause": "div-by-zero",
    "also_causes": ("std-of-constant",),
    "symptom": "param-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "twin_rests": (2,),
    "fix": "std + 1e-8",
}


def fitness(net, obs, limit):
    with torch.no_grad():
        return net(obs).sum().clamp(max=limit)


def build(fixed: bool = False):
    torch.manual_seed(625)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).requires_grad_(False)
    gen = torch.Generator().manual_seed(725)
    eps = 1e-8 if fixed else 0.0

    def step(i):
        obs = torch.randn(10, 4, generator=gen)
        limit = -1000.0 if i == 2 else 1000.0
        centre = parameters_to_vector(net.parameters())
        noise = torch.randn(8, centre.numel(), generator=gen)
        returns = []
        for row in noise:
            vector_to_parameters(centre + 0.1 * row, net.parameters())
            returns.append(fitness(net, obs, limit))
        returns = torch.stack(returns)
        advantage = (returns - returns.mean()) / (returns.std() + eps)  # ORIGIN
        vector_to_parameters(centre + 0.05 * (advantage @ noise) / 8, net.parameters())
        return -returns.mean()

    return net, step
