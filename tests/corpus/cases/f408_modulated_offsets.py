"""Deformable sampling with normalised modulation: relu closes all taps of one location and the normaliser is zero."""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "softmax instead of relu and division",
}


class ModulatedSampler(nn.Module):
    """k taps at learned offsets, weighed by a normalised modulation."""

    def __init__(self, ch, k=3, combine="div", safe=False):
        super().__init__()
        self.k, self.safe = k, safe
        self.offset = nn.Conv2d(ch, 2 * k, 1)
        self.mod = nn.Conv2d(ch, k, 1, bias=False)
        self.combine = getattr(torch, combine)

    def forward(self, x):
        b, _, h, w = x.shape
        base = F.affine_grid(torch.eye(2, 3).expand(b, 2, 3), x.shape, align_corners=False)
        off = 0.1 * torch.tanh(self.offset(x)).view(b, self.k, 2, h, w).permute(1, 0, 3, 4, 2)
        m = F.relu(self.mod(x)) if not self.safe else torch.softmax(self.mod(x), 1)
        total = m.sum(1, keepdim=True)
        m = self.combine(m, total)  # ORIGIN
        taps = torch.stack([F.grid_sample(x, base + o, align_corners=False) for o in off], 1)
        return (taps * m.unsqueeze(2)).sum(1)


def build(fixed: bool = False):
    torch.manual_seed(17)
    sampler = ModulatedSampler(4, safe=fixed)
    with torch.no_grad():
        sampler.mod.weight.abs_()
    net = nn.Sequential(sampler, nn.Conv2d(4, 2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(18)

    def step(i):
        x = torch.rand(2, 4, 6, 6, generator=gen)
        if i >= 3:
            x[1, :, :2] = 0  # padding of a smaller image
        loss = F.mse_loss(net(x), x[:, :2])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
