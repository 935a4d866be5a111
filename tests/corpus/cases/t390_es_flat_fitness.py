"""Evolution strategy, no autograd: the fitness of the whole population is clipped to the same value and its deviation is zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "also_phase": "other",
    "cause": "std-of-constant",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "twin_rests": (5,),
    "fix": "add an epsilon to the deviation of the fitness",
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.l2(torch.tanh(self.l1(x)))


def build(fixed: bool = False):
    torch.manual_seed(81)
    net = Policy()
    gen = torch.Generator().manual_seed(82)
    theta = nn.utils.parameters_to_vector(net.parameters()).detach()
    eps = 1e-8 if fixed else 0.0

    def fitness(vector, x, goal):
        nn.utils.vector_to_parameters(vector, net.parameters())
        return -(net(x) - goal).pow(2).mean().clamp(max=25.0)

    @torch.no_grad()
    def step(i):
        nonlocal theta
        x = torch.randn(16, 3, generator=gen)
        goal = x.sum(1, keepdim=True)
        if i == 5:
            goal = goal + 100.0  # out of reach: everyone gets the worst score
        noise = torch.randn(10, theta.numel(), generator=gen)
        scores = torch.stack([fitness(theta + 0.1 * n, x, goal) for n in noise])
        shaped = (scores - scores.mean()) / (scores.std() + eps)  # ORIGIN
        theta = theta + 0.05 / (10 * 0.1) * (noise.T @ shaped)
        nn.utils.vector_to_parameters(theta, net.parameters())
        return -scores.mean()

    return net, step
