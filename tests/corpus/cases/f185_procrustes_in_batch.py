"""Shape alignment by svd in a batch: a degenerate shape of two points has a singular value of zero twice."""

import torch
from torch import nn

META = {
    "origin_op": "linalg_svd",
    "also_ops": ("_linalg_svd", "svd", "div"),
    "phase": "backward",
    "cause": "degenerate-matrix",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 3,
    "fix": "align by a regularised matrix",
}


class Align(nn.Module):
    def __init__(self, ridge):
        super().__init__()
        self.ridge = ridge
        self.move = nn.Linear(3, 3)

    def forward(self, a, b):
        m = self.move(a)
        cov = m.transpose(1, 2) @ b
        cov = cov + self.ridge * torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        u, _s, vh = torch.linalg.svd(cov)  # ORIGIN
        return ((m @ (u @ vh)) - b).square().mean()


def build(fixed: bool = False):
    torch.manual_seed(330)
    net = Align(0.1 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(830)

    def step(i):
        opt.zero_grad()
        a = torch.randn(3, 6, 3, generator=gen)
        b = torch.randn(3, 6, 3, generator=gen)
        if i == 2:
            b[1] = 0.0
        loss = net(a, b)
        loss.backward()
        opt.step()
        return loss

    return net, step
