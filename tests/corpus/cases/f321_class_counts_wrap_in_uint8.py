"""Class weights from counts held in uint8: a class with exactly 256 pixels wraps to zero and gets an infinite weight."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ["reciprocal"],
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "count in int64",
}


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(self, x):
        return self.net(x)


def class_weights(y, dtype):
    count = torch.zeros(3, dtype=dtype)
    count.index_add_(0, y.flatten(), torch.ones(y.numel(), dtype=dtype))
    weight = y.numel() / (3 * count.float())  # ORIGIN
    return weight


def build(fixed: bool = False):
    torch.manual_seed(371)
    net = Segmenter()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(372)

    def step(i):
        x = torch.rand(2, 1, 16, 16, generator=gen)
        y = torch.bucketize(x.squeeze(1), torch.tensor([0.3, 0.7]))
        if i == 3:
            order = x.flatten().argsort()
            flat = torch.full((512,), 1)
            flat[order[:256]], flat[order[-100:]] = 0, 2
            y = flat.view(2, 16, 16)
        opt.zero_grad()
        per_pixel = nn.functional.cross_entropy(net(x), y, reduction="none")
        w = class_weights(y, torch.int64 if fixed else torch.uint8)
        loss = (w[y] * per_pixel).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
