"""A soft IoU in one einsum expression over a blank prediction and a blank mask."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div_",
    "also_ops": ("div",),
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "smooth both",
}


class SoftIoU(nn.Module):
    def __init__(self, smooth):
        super().__init__()
        self.smooth = smooth

    def forward(self, p, m):
        inter = torch.einsum("nhw,nhw->n", p, m)
        return 1 - (inter + self.smooth).div_(torch.einsum("nhw->n", p + m - p * m) + self.smooth).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2607)
    net = nn.Conv2d(1, 1, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2612)
    criterion = SoftIoU(1.0 if fixed else 0.0)
    with torch.no_grad():
        net.weight.fill_(0.7)

    def step(i):
        opt.zero_grad()
        x = torch.randn(3, 1, 5, 5, generator=gen)
        m = (x[:, 0] > 0).float()
        if i == 2:
            x[1], m[1] = -9.0, 0.0
        loss = criterion(F.relu(net(x))[:, 0], m)
        loss.backward()
        opt.step()
        return loss

    return net, step
