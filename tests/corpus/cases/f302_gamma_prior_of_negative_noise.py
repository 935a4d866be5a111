"""A Gaussian process whose noise has a Gamma prior but no constraint: one step takes it below zero, where the prior
has a logarithm.
"""

import torch
from torch import nn

META = {
    "origin_op": "xlogy",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "optimise the logarithm of the noise",
}


class Process(nn.Module):
    def __init__(self, constrained):
        super().__init__()
        self.constrained = constrained
        start = torch.tensor(0.05)
        self.raw_noise = nn.Parameter(start.log() if constrained else start)
        self.log_length = nn.Parameter(torch.zeros(()))
        self.prior = torch.distributions.Gamma(torch.tensor(1.1), torch.tensor(0.05), validate_args=False)

    def forward(self, x, y):
        noise = self.raw_noise.exp() if self.constrained else self.raw_noise
        kernel = torch.exp(-0.5 * ((x[:, None] - x[None]) / self.log_length.exp()).square())
        factor = torch.linalg.cholesky(kernel + (noise + 0.2) * torch.eye(len(x)))
        half = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
        fit = 0.5 * half.square().sum() + factor.diagonal().log().sum()
        return fit - self.prior.log_prob(noise)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(955)
    net = Process(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=0.021)
    gen = torch.Generator().manual_seed(55)

    def step(i):
        x = torch.linspace(0, 3, 14)
        y = torch.sin(2 * x) + 0.01 * torch.randn(14, generator=gen)
        opt.zero_grad()
        loss = net(x, y)
        loss.backward()
        opt.step()
        return loss

    return net, step
