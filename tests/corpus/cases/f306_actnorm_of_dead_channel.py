"""Data-dependent initialisation divides by the standard deviation of the first batch; one channel is constant there."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "an epsilon on the standard deviation",
    "also_causes": ["std-of-constant"],
}


class ActNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps, self.ready = eps, False
        self.log_scale, self.shift = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log_scale.copy_(-torch.log(x.std(0) + self.eps))  # ORIGIN
            self.ready = True
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum()


class Flow(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norms = nn.ModuleList(ActNorm(6, eps) for _ in range(2))
        self.mix = nn.ParameterList([nn.Parameter(torch.linalg.qr(torch.randn(6, 6))[0]) for _ in range(2)])

    def forward(self, x):
        total = 0.0
        for norm, mix in zip(self.norms, self.mix, strict=True):
            x, ld = norm(x)
            x, total = x @ mix, total + ld + torch.linalg.slogdet(mix).logabsdet
        return x, total


def build(fixed: bool = False):
    torch.manual_seed(891)
    net = Flow(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(892)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        if i == 0:
            x[:, 3] = 0.0
        opt.zero_grad()
        z, logdet = net(x)
        loss = 0.5 * z.pow(2).sum(-1).mean() - logdet
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
