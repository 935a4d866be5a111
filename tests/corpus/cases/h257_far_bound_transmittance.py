"""NeRF compositing with a last interval of 1e10 and cumprod: alpha is exactly one and transmittance exactly zero, as intended."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "products of zeros in cumprod have finite gradients"}


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, x):
        out = self.net(x)
        return torch.sigmoid(out[..., :3]), torch.relu(out[..., 3] + 0.5)


def build(fixed: bool = False):
    torch.manual_seed(581)
    net = Field()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(582)

    def step(i):
        ray = nn.functional.normalize(torch.randn(12, 3, generator=gen), dim=-1)
        depth = torch.linspace(0.2, 2.0, 8).expand(12, 8)
        if i == 4:
            depth = depth * 200
        delta = torch.cat([depth.diff(dim=-1), torch.full((12, 1), 1e10)], -1)
        rgb, sigma = net(depth.unsqueeze(-1) * ray[:, None])
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat([torch.ones(12, 1), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weight = alpha * trans
        with torch.no_grad():
            disparity = 1 / torch.max(1e-10 * torch.ones(12), (weight * depth).sum(-1) / weight.sum(-1))
            psnr = -10 * torch.log10(torch.zeros(()))  # of an image with itself, for the log
            _ = disparity.mean().item() + psnr.item()
        opt.zero_grad()
        loss = (weight.unsqueeze(-1) * rgb).sum(1).sub(torch.rand(12, 3, generator=gen)).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
