"""A radiance field computes its density as log(1 + exp(x)); a learned gain grows until exp overflows."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "torch.nn.functional.softplus",
}


class Field(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable
        self.net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.sigma, self.colour = nn.Linear(24, 1), nn.Linear(24, 3)

    def density(self, raw):
        if self.stable:
            return nn.functional.softplus(raw)
        return torch.log(1 + torch.exp(raw))  # ORIGIN

    def forward(self, pts, gap):
        h = self.net(pts)
        alpha = 1 - torch.exp(-self.density(self.sigma(h).squeeze(-1)) * gap)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-6], 1), 1)
        return ((through * alpha).unsqueeze(-1) * torch.sigmoid(self.colour(h))).sum(1)


def build(fixed: bool = False):
    torch.manual_seed(28)
    net = Field(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(128)

    def step(i):
        pts = torch.randn(6, 8, 3, generator=gen)
        if i >= 5:
            pts[2, 3:] = torch.tensor([900.0, -700.0, 800.0])  # a ray that leaves the scene
            pts[3, 3:] = torch.tensor([-900.0, 700.0, 800.0])
        target = torch.rand(6, 3, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(pts, 0.1), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
