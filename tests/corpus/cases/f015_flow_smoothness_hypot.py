"""Edge-aware smoothness of a depth map: hypot(dx, dy) is not differentiable where the predicted depth is flat."""

import torch
from torch import nn

META = {
    "origin_op": "hypot",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "sqrt(dx^2 + dy^2 + eps)",
}


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, padding_mode="replicate"),
            nn.ELU(),
            nn.Conv2d(8, 8, 3, padding=1, padding_mode="replicate"),
            nn.ELU(),
        )
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        return nn.functional.softplus(self.head(self.net(x)))


def smoothness(depth, image, safe):
    dx, dy = depth[..., 1:, 1:] - depth[..., 1:, :-1], depth[..., 1:, 1:] - depth[..., :-1, 1:]
    edge = (image[..., 1:, 1:] - image[..., :-1, :-1]).abs()
    slope = (dx * dx + dy * dy + 1e-10).sqrt() if safe else torch.hypot(dx, dy)  # ORIGIN
    return (slope * torch.exp(-edge)).mean()


def build(fixed: bool = False):
    torch.manual_seed(15)
    net = DepthNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(115)

    def step(i):
        image = torch.rand(3, 1, 14, 14, generator=gen)
        if i == 4:
            image[0, :, :, 3:] = 0.5  # blank sky
        depth = 1 + image
        opt.zero_grad()
        pred = net(image)
        loss = nn.functional.l1_loss(pred, depth) + 0.1 * smoothness(pred, image, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
