"""Sine features with learned frequencies, averaged over a sample's footprint [lo, hi] (plain Python numbers): a point sample has hi = lo, and the average is 0 / 0."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "form": "Python numbers",
    "loss_truth": 0.03354360644,
    "fix": "sin(f m) sinc(f h / 2), m the middle and h the width of the footprint",
}

FOOTPRINTS = [(0.1, 0.3), (0.5, 0.5), (0.7, 1.2), (1.4, 1.5)]


def box_sine(freq, *, lo, hi):
    return (torch.cos(freq * lo) - torch.cos(freq * hi)) / (freq * (hi - lo))  # ORIGIN


def box_sine_sinc(freq, *, lo, hi):
    return torch.sin(freq * (0.5 * (lo + hi))) * torch.sinc(freq * ((hi - lo) / (2 * torch.pi)))


class Signal(nn.Module):
    def __init__(self, feature):
        super().__init__()
        self.feature = feature
        self.freq = nn.Parameter(torch.tensor([1.0, 2.3, 5.1]))
        self.amp = nn.Linear(3, 1, bias=False)
        nn.init.constant_(self.amp.weight, 0.4)

    def forward(self, footprints):
        rows = [self.feature(self.freq, lo=lo, hi=hi) for lo, hi in footprints]
        return self.amp(torch.stack(rows)).squeeze(-1)


def build(fixed: bool = False):
    net = Signal(box_sine_sinc if fixed else box_sine)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    seen = torch.tensor([0.3, 0.7, 0.2, 0.5])

    def step(i):
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(FOOTPRINTS), seen)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    freq = torch.tensor([1.0, 2.3, 5.1], dtype=torch.float64, requires_grad=True)
    amp = torch.full((1, 3), 0.4, dtype=torch.float64, requires_grad=True)
    loss = 0.0
    for (lo, hi), y in zip(FOOTPRINTS, (0.3, 0.7, 0.2, 0.5)):
        if hi == lo:
            mean = torch.sin(freq * lo)
        else:
            mean = (torch.cos(freq * lo) - torch.cos(freq * hi)) / freq / (hi - lo)
        loss = loss + ((amp * mean).sum() - y) ** 2 / 4
    g = torch.autograd.grad(loss, [freq, amp])
    return {"freq": g[0], "amp.weight": g[1]}
