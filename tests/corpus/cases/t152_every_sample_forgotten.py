"""Co-teaching keeps the samples of smallest loss, fewer each epoch; at the end of the schedule it keeps none and takes the mean of nothing."""

import torch
from torch import nn

META = {
    "origin_op": "mean",
    "also_ops": ("sum", "div"),
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 7,
    "fix": "keep at least one sample",
}


def build(fixed: bool = False):
    torch.manual_seed(652)
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(752)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = x[:, :3].argmax(1)
        keep = int(16 * max(1.0 - 0.2 * i, 0.0))
        if fixed:
            keep = max(keep, 1)
        opt.zero_grad()
        losses = nn.functional.cross_entropy(net(x), y, reduction="none")
        loss = losses.sort().values[:keep].mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
