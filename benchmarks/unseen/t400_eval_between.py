"""Every third batch is followed by an evaluation whose recall is NaN for absent classes; the fault is a harmonic mean in the training loss."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 7,
    "n_steps": 10,
    "fix": "add an epsilon to numerator and denominator",
}


class Seg(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 1, 1))

    def forward(self, x):
        return self.net(x)


def soft_dice(prob, mask, eps):
    inter = (prob * mask).sum((1, 2, 3))
    size = (prob * prob).sum((1, 2, 3)) + mask.sum((1, 2, 3))
    return 1 - ((2 * inter + eps) / (size + eps)).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(171)
    net = Seg()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(172)
    history = []

    @torch.no_grad()
    def evaluate():
        net.eval()
        x = torch.randn(4, 1, 8, 8, generator=gen)
        y = (x > 0.8).float()
        y[0] = 0
        pred = (net(x) > 0).float()
        recall = (pred * y).sum((1, 2, 3)) / y.sum((1, 2, 3))  # no positives in the first image: nan
        history.append((recall[0].item(), recall.nanmean().item()))
        net.train()

    def step(i):
        x = torch.randn(4, 1, 8, 8, generator=gen)
        mask = (x > 0.8).float()
        roi = torch.ones(4, 1, 1, 1)
        if i == 7:
            roi[1] = 0.0  # an image without annotated region
        opt.zero_grad()
        prob = torch.sigmoid(net(x)) * roi
        loss = soft_dice(prob, mask * roi, 1e-6 if fixed else 0.0)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if i % 3 == 2:
            evaluate()
        return loss

    return net, step
