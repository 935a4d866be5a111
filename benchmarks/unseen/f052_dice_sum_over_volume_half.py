"""Dice loss of a volume in half autocast: the voxel sum of a large organ is beyond 65504, inf / inf."""
import torch
from torch import nn

META = {
    "origin_op": "sum", "phase": "forward", "cause": "dtype-overflow", "symptom": "loss-nan",
    "first_bad_step": 1, "n_steps": 3, "fix": "sum in float32",
}


class VNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv3d(1, 2, 1), nn.Conv3d(2, 1, 1)
        nn.init.constant_(self.b.bias, 2.0)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def dice(p, y):
    inter = (p * y).sum((1, 2, 3, 4))  # ORIGIN
    union = p.sum((1, 2, 3, 4)) + y.sum((1, 2, 3, 4))  # ALSO
    return 1 - (2 * inter / union).float().mean()


def build(fixed: bool = False):
    torch.manual_seed(104)
    net = VNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(105)

    def step(i):
        side = 24 if i < 1 else 52
        y = torch.ones(1, 1, side, side, side)
        y[..., :2] = 0
        x = y + 0.2 * torch.randn(y.shape, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            p = torch.sigmoid(net(x))
        p = p.float() if fixed else p.half()
        loss = dice(p, y.to(p.dtype))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
