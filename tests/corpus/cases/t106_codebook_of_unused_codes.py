"""A VQ codebook kept as moving averages of sums and counts; a code that nobody has chosen has count zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "Laplace smoothing of the counts",
}


class Quantiser(nn.Module):
    def __init__(self, codes=12, dim=4):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, dim), requires_grad=False)
        self.register_buffer("count", torch.zeros(codes))
        self.register_buffer("total", torch.zeros(codes, dim))

    def forward(self, z):
        chosen = torch.cdist(z, self.codebook).argmin(1)
        q = self.codebook[chosen]
        return z + (q - z).detach(), (z - q.detach()).square().mean(), chosen

    @torch.no_grad()
    def follow(self, z, chosen, smooth):
        onehot = nn.functional.one_hot(chosen, len(self.count)).to(z.dtype)
        self.count.lerp_(onehot.sum(0), 0.1)
        self.total.lerp_(onehot.T @ z, 0.1)
        self.codebook.copy_(self.total / (self.count + smooth).unsqueeze(1))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(606)
    net = nn.ModuleDict({"enc": nn.Linear(8, 4), "vq": Quantiser(), "dec": nn.Linear(4, 8)})
    opt = torch.optim.Adam([*net["enc"].parameters(), *net["dec"].parameters()], lr=1e-2)
    gen = torch.Generator().manual_seed(706)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        opt.zero_grad()
        z = net["enc"](x)
        q, commit, chosen = net["vq"](z)
        loss = nn.functional.mse_loss(net["dec"](q), x) + 0.25 * commit
        loss.backward()
        opt.step()
        net["vq"].follow(z, chosen, 1e-5 if fixed else 0.0)
        return loss

    return net, step
