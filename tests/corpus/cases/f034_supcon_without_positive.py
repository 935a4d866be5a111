"""Supervised contrast takes logsumexp over the positives of an anchor; a rare class has one image in the batch, so none."""

import torch
from torch import nn

META = {
    "origin_op": "logsumexp",
    "phase": "forward",
    "cause": "softmax-all-masked",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "leave anchors without a positive out",
}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(12 * 4, 8)

    def forward(self, x):
        return nn.functional.normalize(self.head(self.conv(x)), dim=1)


def supcon(e, y, skip_single):
    sim = e @ e.t() / 0.2
    own = torch.eye(len(y), dtype=torch.bool)
    positive = (y.unsqueeze(0) == y.unsqueeze(1)) & ~own
    if skip_single:
        keep = positive.any(1)
        sim, own, positive = sim[keep], own[keep], positive[keep]
    near = torch.logsumexp(sim.masked_fill(~positive, float("-inf")), 1)  # ORIGIN
    every = torch.logsumexp(sim.masked_fill(own, float("-inf")), 1)
    return (every - near).mean()


def build(fixed: bool = False):
    torch.manual_seed(34)
    net = Encoder()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(134)

    def step(i):
        x = torch.randn(8, 1, 12, 12, generator=gen)
        y = torch.tensor([0, 0, 1, 1, 2, 2, 2, 0])
        if i == 4:
            y[3] = 7
        opt.zero_grad()
        loss = supcon(net(x), y, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
