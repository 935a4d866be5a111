"""A denoiser with a moving average of its weights; the loss is weighted by the noise level. div-by-zero"""
import argparse
import copy

import torch
from torch import nn

T = 100


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(T, 32)
        self.a, self.b, self.c = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x, t):
        h = torch.nn.functional.silu(self.a(x) + self.time(t))
        return self.c(torch.nn.functional.silu(self.b(h)))


class EMA:
    def __init__(self, model, decay=0.995):
        self.decay, self.shadow = decay, copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(self.decay).add_(p, alpha=1 - self.decay)


class Diffusion:
    def __init__(self):
        beta = torch.linspace(0, 0.04, T)
        self.alpha_bar = (1 - beta).cumprod(0)

    def loss(self, model, x0, lowest, floor):
        t = torch.randint(lowest, T, (len(x0),))
        noise = torch.randn_like(x0)
        ab = self.alpha_bar[t][:, None]
        xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        error = (model(xt, t) - noise).pow(2).mean(1)
        snr = ab[:, 0] / (1 - ab[:, 0]).clamp(min=floor)  # FAULT
        weight = snr / (snr + 1)
        return (weight * error).mean()


def main(args):
    torch.manual_seed(4)
    model, diffusion = Denoiser(), Diffusion()
    ema = EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(9)
    for step in range(args.steps):
        x0 = torch.randn(64, 2, generator=g).sign() + 0.1 * torch.randn(64, 2, generator=g)
        lowest = 1 if step < args.late else 0
        loss = diffusion.loss(model, x0, lowest, 1e-5 if args.repaired else 0.0)
        loss.backward()
        opt.step()
        opt.zero_grad()
        ema.update(model)
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--late", type=int, default=300)
    p.add_argument("--repaired", action="store_true")
    main(p.parse_args())
