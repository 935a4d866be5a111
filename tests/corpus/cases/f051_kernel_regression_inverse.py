"""Kernel regression with inv_ex, which does not raise: two equal support points without jitter give an infinite inverse."""

import torch
from torch import nn

META = {
    "origin_op": "linalg_inv_ex",
    "also_ops": ("inv_ex",),
    "phase": "forward",
    "cause": "degenerate-matrix",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "jitter on the diagonal",
}


class DeepKernel(nn.Module):
    def __init__(self, jitter):
        super().__init__()
        self.jitter = jitter
        self.embed = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 6))

    def kernel(self, a, b):
        gap = (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(-1)
        return torch.exp(-gap)

    def forward(self, support, y, query):
        s, q = self.embed(support), self.embed(query)
        gram = self.kernel(s, s) + self.jitter * torch.eye(len(s))
        inverse, _ = torch.linalg.inv_ex(gram)  # ORIGIN
        return self.kernel(q, s) @ (inverse @ y)


def build(fixed: bool = False):
    torch.manual_seed(51)
    net = DeepKernel(0.05 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(151)

    def step(i):
        support, query = 3 * torch.randn(2, 3, generator=gen), torch.randn(10, 3, generator=gen)
        if i == 3:
            support[1] = support[0]  # drawn with replacement
        target = torch.sin(query).sum(1)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(support, torch.sin(support).sum(1), query), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
