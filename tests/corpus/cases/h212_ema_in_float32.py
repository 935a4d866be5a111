"""bfloat16 autocast with a float32 moving average of the weights, decay 0.9995: it moves little, but it moves."""

import copy

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "small updates that float32 still resolves",
}


class WithEma(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.LayerNorm(24), nn.SiLU(), nn.Linear(24, 6))
        self.ema = copy.deepcopy(self.net).requires_grad_(False)

    @torch.no_grad()
    def follow(self, decay=0.9995):
        torch._foreach_lerp_(list(self.ema.parameters()), list(self.net.parameters()), 1 - decay)


def build(fixed: bool = False):
    torch.manual_seed(612)
    model = WithEma()
    opt = torch.optim.Adam(model.net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(712)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model.net(x + 0.3 * torch.randn(16, 6, generator=gen))
        loss = nn.functional.mse_loss(out.float(), x)
        loss.backward()
        opt.step()
        model.follow()
        return loss

    return model, step
