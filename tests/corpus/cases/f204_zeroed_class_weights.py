"""Cross-entropy weights are set to zero for the background class; a crop that is all background sums no weight."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "nll_loss_forward",
    "also_ops": ("nll_loss", "nll_loss2d_forward", "div", "cross_entropy_loss"),
    "phase": "forward",
    "cause": "empty-reduction",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "skip such a crop",
}


class Seg(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(421)
    net = Seg()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(921)
    weight = torch.tensor([0.1 if fixed else 0.0, 1.0, 2.0])

    def step(i):
        opt.zero_grad()
        x = torch.rand(2, 1, 6, 6, generator=gen)
        y = torch.randint(0, 3, (2, 6, 6), generator=gen)
        if i == 2:
            y[:] = 0
        loss = F.cross_entropy(net(x), y, weight=weight)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
