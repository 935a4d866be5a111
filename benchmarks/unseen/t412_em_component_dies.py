"""Expectation-maximisation by hand, no autograd: a component is responsible for nothing and its mean is 0 / 0."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "also_phase": "other",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "add an epsilon to each component's mass",
}


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([[-2.0], [0.0], [2.0]]))
        self.register_buffer("var", torch.ones(3, 1))
        self.register_buffer("share", torch.ones(3) / 3)

    def log_joint(self, x):
        d = (x[:, None] - self.mean) ** 2 / self.var + self.var.log()
        return -0.5 * d.sum(-1) + self.share.log()


def build(fixed: bool = False):
    torch.manual_seed(291)
    gmm = Mixture()
    gen = torch.Generator().manual_seed(292)
    eps = 1e-3 if fixed else 0.0

    @torch.no_grad()
    def step(i):
        x = torch.randn(30, 1, generator=gen) + 2.0 * torch.randint(-1, 2, (30, 1), generator=gen)
        if i == 4:
            x = 60.0 + 0.1 * torch.randn(30, 1, generator=gen)  # one stray file
        joint = gmm.log_joint(x)
        evidence = torch.logsumexp(joint, 1, keepdim=True)
        resp = (joint - evidence).exp()
        mass = resp.sum(0)[:, None] + eps
        gmm.mean.copy_((resp.T @ x + eps * gmm.mean) / mass)  # ORIGIN
        gmm.var.copy_(((resp.T @ x**2) / mass - gmm.mean**2).clamp_min(0.05))
        gmm.share.copy_((mass / mass.sum()).squeeze(1))
        return -evidence.mean()

    return gmm, step
