"""Permutation-invariant SI-SNR in one expression: a mixture with a single speaker has a silent second source."""

import itertools

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "add an epsilon to the energy of the reference",
}


class Separator(nn.Module):
    def __init__(self):
        super().__init__()
        self.masks = nn.Sequential(nn.Conv1d(1, 8, 7, padding=3), nn.PReLU(), nn.Conv1d(8, 2, 1), nn.Sigmoid())

    def forward(self, mix):
        return self.masks(mix) * mix


def si_snr(est, ref, eps):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    proj = (est * ref).sum(-1, keepdim=True) * ref / (ref.square().sum(-1, keepdim=True) + eps)  # ORIGIN
    return 10 * torch.log10((proj.square().sum(-1) + eps) / ((est - proj).square().sum(-1) + eps))


def pit(est, ref, eps):
    orders = list(itertools.permutations(range(ref.shape[1])))
    scores = torch.stack([si_snr(est[:, list(o)], ref, eps).mean(1) for o in orders], 1)
    return -scores.max(1).values.mean()


def build(fixed: bool = False):
    torch.manual_seed(663)
    net = Separator()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(668)

    def step(i):
        opt.zero_grad()
        ref = torch.randn(4, 2, 64, generator=gen)
        if i == 3:
            ref[2, 1] = 0
        loss = pit(net(ref.sum(1, keepdim=True)), ref, 1e-8 if fixed else 0.0)
        loss.backward()
        opt.step()
        return loss

    return net, step
