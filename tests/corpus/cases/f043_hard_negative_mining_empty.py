"""Hard-example mining averages the losses above a threshold; when training goes well there are none."""

import torch
from torch import nn

META = {
    "origin_op": "mean",
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "divide the sum by max(count, 1)",
}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def mined(losses, threshold, safe):
    hard = losses[losses > threshold]
    if safe:
        return hard.sum() / max(hard.numel(), 1)
    return hard.mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(43)
    net = Detector()
    opt = torch.optim.Adam(net.parameters(), lr=0.008)
    gen = torch.Generator().manual_seed(143)

    def step(i):
        y = torch.arange(16) % 2
        x = 0.2 * torch.randn(16, 4, generator=gen) + (2.0 * y - 1).unsqueeze(1)
        opt.zero_grad()
        losses = nn.functional.binary_cross_entropy_with_logits(net(x), y.float(), reduction="none")
        loss = mined(losses, 0.6, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
