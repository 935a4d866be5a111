"""Bfloat16 weights with float32 masters: in any one step most weights do not change, because the masters have not yet come far enough."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 12,
    "why": "the masters keep what the weights cannot hold; all weights move over the run",
}


def build(fixed: bool = False):
    torch.manual_seed(954)
    model = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 3)).bfloat16()
    masters = [p.detach().float().clone() for p in model.parameters()]
    opt = torch.optim.Adam(masters, lr=1e-4)
    gen = torch.Generator().manual_seed(1954)

    def step(i):
        x = torch.randn(32, 10, generator=gen)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x.bfloat16()).float(), x[:, :3].argmax(1))
        loss.backward()
        with torch.no_grad():
            for m, p in zip(masters, model.parameters(), strict=True):
                m.grad = p.grad.float()
            opt.step()
            for m, p in zip(masters, model.parameters(), strict=True):
                p.copy_(m)
        return loss

    return model, step
