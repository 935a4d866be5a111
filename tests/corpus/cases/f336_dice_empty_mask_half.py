"""Dice under half: on a slice without lesion the confident sigmoid flushes to zero everywhere, the smoothing 1e-8 vanishes, 0 / 0.

Source: reports of nan Dice under mixed precision (smooth = 1e-8 in float16)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("div-by-zero", "dtype-underflow"),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "Dice in float32 with smooth = 1",
}


class Seg(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
        with torch.no_grad():
            for p in self.net.parameters():
                p.mul_(0.5)
            self.net[0].weight[0].fill_(0.4)
            self.net[0].bias[0] = 0.0
            self.net[2].weight[0, 0] = 4.0
            self.net[2].bias.fill_(-2.0)

    def forward(self, x):
        return self.net(x)


def dice(prob, target, smooth):
    inter = (prob * target).sum((1, 2, 3))
    union = prob.sum((1, 2, 3)) + target.sum((1, 2, 3))
    score = (2 * inter + smooth) / (union + smooth)  # ORIGIN
    return 1 - score.mean()


def build(fixed: bool = False):
    torch.manual_seed(342)
    net = Seg().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(343)

    def step(i):
        x = torch.rand(4, 1, 8, 8, generator=gen)
        y = torch.zeros(4, 1, 8, 8)
        y[:, :, 2:5, 3:6] = 1.0
        x = x + 2 * y
        if i == 3:
            y[1] = 0.0
            x[1] = -1.0  # air: nothing to see
        opt.zero_grad()
        logits = net(x.half())
        logits = logits - 18.0 * (x < 0).half()  # the scanner's own air mask pushes the logit down
        prob = torch.sigmoid(logits.float() if fixed else logits)
        loss = dice(prob, y.to(prob.dtype), 1.0 if fixed else 1e-8)
        loss.backward()
        opt.step()
        return loss

    return net, step
