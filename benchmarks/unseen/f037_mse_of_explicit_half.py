"""The loss stands outside autocast and the target is cast to the half of the prediction: a residual of 840 squared is inf."""
import torch
from torch import nn

META = {
    "origin_op": "mse_loss", "phase": "forward", "cause": "dtype-overflow", "symptom": "loss-inf",
    "first_bad_step": 2, "n_steps": 5, "fix": "leave the loss in float32",
}


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 1))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(72)
    net = Depth()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(73)
    best = float("inf")

    def step(i):
        nonlocal best
        x = torch.randn(2, 1, 8, 8, generator=gen)
        depth = 60 + 20 * torch.rand(2, 1, 8, 8, generator=gen)
        if i >= 2:
            depth[1] = 900.0  # sky
        with torch.autocast("cpu", dtype=torch.float16):
            pred = net(x)
        if fixed:
            loss = nn.functional.smooth_l1_loss(pred.float(), depth)
        else:
            loss = nn.functional.mse_loss(pred, depth.half())  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        best = min(best, loss.item())
        return loss.float()

    return net, step
