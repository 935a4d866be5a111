"""A Gaussian copula's log-likelihood takes slogdet of a learned correlation; two identical columns make it singular."""

import torch
from torch import nn

META = {
    "origin_op": "linalg_slogdet",
    "also_ops": ("_linalg_slogdet", "slogdet", "log"),
    "phase": "forward",
    "cause": "degenerate-matrix",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add a ridge to the correlation",
}


class Copula(nn.Module):
    def __init__(self, ridge):
        super().__init__()
        self.ridge = ridge
        self.factor = nn.Linear(3, 4 * 4)

    def forward(self, x, rows):
        load = self.factor(x).view(-1, 4, 4)
        load = load[:, rows]
        cov = load @ load.transpose(1, 2) + self.ridge * torch.eye(4)
        _sign, logdet = torch.linalg.slogdet(cov)  # ORIGIN
        return 0.5 * logdet.mean() + 0.05 * cov.diagonal(dim1=1, dim2=2).sum(-1).mean()


def build(fixed: bool = False):
    torch.manual_seed(226)
    net = Copula(1e-2 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(726)

    def step(i):
        opt.zero_grad()
        x = torch.randn(5, 3, generator=gen)
        rows = [0, 1, 2, 3]
        if i == 2:
            x[1] = 0.0
            with torch.no_grad():
                net.factor.bias.zero_()
        loss = net(x, rows).abs()
        loss.backward()
        opt.step()
        return loss

    return net, step
