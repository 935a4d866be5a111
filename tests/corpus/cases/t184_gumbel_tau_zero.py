"""Gumbel-softmax annealed linearly: in the last epoch the temperature is exactly zero."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 16,
    "n_steps": 18,
    "fix": "a floor below the temperature",
}

EPOCHS, BATCHES = 9, 2


class Quantiser(nn.Module):
    def __init__(self, codes=6, dim=8):
        super().__init__()
        self.enc, self.dec = nn.Linear(10, codes), nn.Linear(dim, 10)
        self.book = nn.Parameter(torch.randn(codes, dim))

    def forward(self, x, tau, gen):
        logits = self.enc(x)
        u = torch.rand(logits.shape, generator=gen).clamp(1e-6, 1 - 1e-6)
        gumbel = -torch.log(-torch.log(u))
        soft = torch.softmax((logits + gumbel) / tau, -1)  # ORIGIN
        return self.dec(soft @ self.book)


def anneal(epoch, fixed):
    tau = 1.0 * (1 - epoch / (EPOCHS - 1))
    return max(tau, 0.1) if fixed else tau


def train(model, opt, gen, fixed):
    data = torch.randn(BATCHES, 32, 10, generator=gen)
    for epoch in range(EPOCHS):
        tau = anneal(epoch, fixed)
        for x in data:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x, tau, gen), x)
            loss.backward()
            opt.step()
            yield loss


def build(fixed: bool = False):
    torch.manual_seed(18)
    model = Quantiser()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    run = train(model, opt, torch.Generator().manual_seed(19), fixed)
    return model, lambda i: next(run)
