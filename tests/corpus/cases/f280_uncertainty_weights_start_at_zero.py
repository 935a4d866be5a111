"""Task weights 1 / (2 sigma^2) where sigma, not its logarithm, is the parameter, and it starts at zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "start sigma at one, or learn log sigma",
}


class Weighted(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.trunk = nn.Linear(5, 8)
        self.heads = nn.ModuleDict({"depth": nn.Linear(8, 1), "normal": nn.Linear(8, 3)})
        self.sigma = nn.ParameterDict({k: nn.Parameter(torch.full((), start)) for k in self.heads})

    def forward(self, x, targets):
        h, total = torch.tanh(self.trunk(x)), x.new_zeros(())
        for name, head in self.heads.items():
            s = self.sigma[name]
            total = total + F.mse_loss(head(h), targets[name]) / (2 * s**2) + torch.log1p(s)  # ORIGIN
        return total


def build(fixed: bool = False):
    torch.manual_seed(1363)
    net = Weighted(1.0 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1368)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 5, generator=gen)
        loss = net(x, {"depth": x[:, :1], "normal": x[:, 2:]})
        loss.backward()
        opt.step()
        return loss

    return net, step
