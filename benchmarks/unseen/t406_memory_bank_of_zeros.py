"""Instance discrimination with a memory bank that begins as zeros: rows not yet written are normalised by their norm of zero."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "start the bank with random unit vectors",
}


class Encoder(nn.Module):
    def __init__(self, filled):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.register_buffer("bank", nn.functional.normalize(torch.randn(24, 8), dim=1) if filled else torch.zeros(24, 8))

    def forward(self, x):
        return nn.functional.normalize(self.f(x), dim=-1)


def build(fixed: bool = False):
    torch.manual_seed(231)
    enc = Encoder(fixed)
    opt = torch.optim.SGD(enc.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(232)
    data = torch.randn(24, 6, generator=gen)

    def negatives():
        bank = enc.bank
        return bank / bank.norm(dim=1, keepdim=True)  # ORIGIN

    def step(i):
        idx = torch.arange(8) + 8 * (i % 3)
        if i == 2:
            idx = idx[:-2]  # the last batch of the first epoch is short
        q = enc(data[idx] + 0.1 * torch.randn(len(idx), 6, generator=gen))
        if i < 3:  # the first epoch only fills the bank
            loss = (q * enc(data[idx]).detach()).sum(1).neg().mean()
        else:
            logits = q @ negatives().T / 0.2
            loss = nn.functional.cross_entropy(logits, idx)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            k = enc(data[idx])
            enc.bank[idx] = 0.5 * enc.bank[idx] + 0.5 * k
        return loss

    return enc, step
