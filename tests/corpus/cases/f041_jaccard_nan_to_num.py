"""Soft Jaccard loss: nan_to_num turns the 0/0 of an absent class into 0, and its gradient stays 0 * inf."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "repair-forward-only",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "an epsilon in the union",
}


class Tagger(nn.Module):
    def __init__(self, tags=4):
        super().__init__()
        self.emb = nn.Embedding(30, 12)
        self.conv = nn.Sequential(nn.Conv1d(12, 16, 3, padding=1), nn.ReLU())
        self.out = nn.Linear(16, tags)
        self.register_buffer("enabled", torch.ones(tags))

    def forward(self, ids):
        h = self.conv(self.emb(ids).transpose(1, 2)).transpose(1, 2)
        return nn.functional.softplus(self.out(h)) * self.enabled


def jaccard(score, truth, eps):
    both = (score * truth).sum(1)
    either = (score + truth - score * truth).sum(1)
    iou = torch.nan_to_num(both / (either + eps))  # ORIGIN
    return 1 - iou.mean()


def build(fixed: bool = False):
    torch.manual_seed(41)
    net = Tagger()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(141)

    def step(i):
        ids = torch.randint(0, 30, (5, 8), generator=gen)
        truth = (torch.rand(5, 8, 4, generator=gen) < 0.4).float()
        truth[:, 0] = 1.0
        if i == 3:
            net.enabled[2], truth[4, :, 2] = 0.0, 0.0  # the tag is switched off
        opt.zero_grad()
        loss = jaccard(net(ids), truth, 1e-6 if fixed else 0.0)
        loss.backward()
        opt.step()
        return loss

    return net, step
