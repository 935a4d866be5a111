"""Utterances are pooled by their length after subsampling; a clip shorter than the hop has no frame at all."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mean",
    "also_ops": ("sum", "div"),
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "pad to one frame at least",
}


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, clips, minimum):
        pooled = []
        for c in clips:
            n = max(len(c) // 4, minimum)
            pooled.append(self.lin(c[:n]).mean(0))  # ORIGIN
        return self.out(torch.stack(pooled))


def build(fixed: bool = False):
    torch.manual_seed(409)
    net = Pool()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(909)

    def step(i):
        opt.zero_grad()
        sizes = [8, 12, 3 if i == 2 else 9, 16]
        clips = [torch.randn(n, 4, generator=gen) for n in sizes]
        loss = F.cross_entropy(net(clips, 1 if fixed else 0), torch.tensor([0, 1, 0, 1]))
        loss.backward()
        opt.step()
        return loss

    return net, step
