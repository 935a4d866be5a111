"""Mixture by expectation-maximisation: components of share zero have a log of -inf, and their responsibilities are zero, as they should be."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 6}


def build(fixed: bool = False):
    torch.manual_seed(540)
    gmm = nn.Module()
    gmm.register_buffer("mean", torch.tensor([-2.0, 0.0, 2.0]))
    gmm.register_buffer("share", torch.tensor([0.5, 0.0, 0.5]))
    gen = torch.Generator().manual_seed(541)

    @torch.no_grad()
    def step(i):
        x = torch.randn(40, generator=gen) + 2.0 * (2 * torch.randint(0, 2, (40,), generator=gen) - 1)
        joint = -0.5 * (x[:, None] - gmm.mean) ** 2 + gmm.share.log()
        evidence = joint.logsumexp(1, keepdim=True)
        resp = (joint - evidence).exp()
        mass = resp.sum(0)
        gmm.mean.copy_(torch.where(mass > 0, (resp * x[:, None]).sum(0) / mass.clamp_min(1e-6), gmm.mean))
        gmm.share.copy_(mass / mass.sum())
        return -evidence.mean()

    return gmm, step
