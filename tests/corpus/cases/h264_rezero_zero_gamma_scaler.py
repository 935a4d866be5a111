"""Residual branches that start at zero (ReZero's alpha, a zero gamma of the last norm) under float16 autocast with a GradScaler."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "branches that start at zero have no gradient in the first step",
}


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.norm = nn.LayerNorm(dim)
        self.alpha = nn.Parameter(torch.zeros(()))
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        x = x + self.alpha * self.f(x)
        return x + self.norm(self.f(x))


def build(fixed: bool = False):
    torch.manual_seed(1268)
    net = nn.Sequential(nn.Linear(6, 16), Block(16), Block(16), nn.Linear(16, 2))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    gen = torch.Generator().manual_seed(1269)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = (x.sum(1) > 0).long()
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
