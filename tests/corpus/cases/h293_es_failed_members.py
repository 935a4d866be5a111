"""Evolution strategy by ranks: members that failed score -inf, which only the order sees."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "only the order of the scores is used"}


def build(fixed: bool = False):
    torch.manual_seed(530)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
    gen = torch.Generator().manual_seed(531)
    theta = nn.utils.parameters_to_vector(net.parameters()).detach()

    @torch.no_grad()
    def step(i):
        nonlocal theta
        x = torch.randn(12, 2, generator=gen)
        half = torch.randn(5, theta.numel(), generator=gen)
        noise = torch.cat([half, -half])
        scores = []
        for n in noise:
            nn.utils.vector_to_parameters(theta + 0.1 * n, net.parameters())
            scores.append(-(net(x).squeeze(1) - x[:, 0]).pow(2).mean())
        scores = torch.stack(scores)
        scores[i % 10] = float("-inf")
        ranks = scores.argsort().argsort().float() / 9 - 0.5
        theta = theta + 0.1 * (ranks @ noise)
        nn.utils.vector_to_parameters(theta, net.parameters())
        return -scores[torch.isfinite(scores)].mean()

    return net, step
