"""Log-Euclidean distance of covariances, the logarithm through eigh: a covariance that is still a multiple of the identity."""
import torch
from torch import nn

META = {
    "origin_op": "linalg_eigh",
    "phase": "backward",
    "cause": "equal-eigenvalues",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 1,
    "kind": "removable",
    "form": "several variables",
    "loss_truth": 0.9384466669,
    "fix": "divided differences of log, whose limit is 1 / eigenvalue",
}


class Covariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.stack([2.0 * torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, 4.0]))]))


class LogStable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, m):
        lam, v = torch.linalg.eigh(m)
        ctx.save_for_backward(lam, v)
        return v @ torch.diag_embed(lam.log()) @ v.mT

    @staticmethod
    def backward(ctx, grad):
        lam, v = ctx.saved_tensors
        a, b = lam[..., :, None], lam[..., None, :]
        same = (a - b).abs() < 1e-4 * a
        quotient = torch.where(same, 1 / a, (a.log() - b.log()) / torch.where(same, torch.ones_like(a - b), a - b))
        return v @ (quotient * (v.mT @ grad @ v)) @ v.mT


def logm(m):
    lam, v = torch.linalg.eigh(m)  # ORIGIN
    return v @ torch.diag_embed(torch.log(lam)) @ v.mT


def build(fixed: bool = False):
    net = Covariance()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    target = torch.tensor([[0.5, 0.2, 0.1], [0.2, 0.4, 0.0], [0.1, 0.0, 0.9]])
    log = LogStable.apply if fixed else logm

    def step(i):
        opt.zero_grad()
        loss = (log((net.c + net.c.mT) / 2) - target).pow(2).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    target = torch.tensor([[0.5, 0.2, 0.1], [0.2, 0.4, 0.0], [0.1, 0.0, 0.9]], dtype=torch.float64)
    lam = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    left = 2 * (torch.diag(lam.log()) - target)  # diagonal: its logarithm is plain
    quotient = (lam.log()[:, None] - lam.log()) / (lam[:, None] - lam)
    quotient[range(3), range(3)] = 1 / lam
    first = 2 * (torch.log(torch.tensor(2.0, dtype=torch.float64)) * torch.eye(3, dtype=torch.float64) - target)
    loss = (first / 2).pow(2).sum() + (left / 2).pow(2).sum()
    return {"c": torch.stack([first / 2, left * quotient])}
