"""Truncated backpropagation in four chunks to a document, a step each: the forget gate saturates and sqrt(1 - f^2) has an infinite slope."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "an epsilon under the root",
}


class LRU(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.gate, self.inp, self.out = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, 1)
        self.eps = eps

    def forward(self, x, h):
        ys = []
        for t in range(x.shape[1]):
            f = torch.sigmoid(self.gate(x[:, t]))
            h = f * h + torch.sqrt(1 - f * f + self.eps) * self.inp(x[:, t])  # ORIGIN
            ys.append(self.out(h))
        return torch.stack(ys, 1).squeeze(-1), h


def build(fixed: bool = False):
    torch.manual_seed(251)
    net = LRU(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(252)

    def document(i):
        x = torch.randn(4, 20, 3, generator=gen)
        if i == 3:
            x[1, 12] = 300.0 * torch.sign(net.gate.weight.detach()[2])  # a spike on one sensor
        return x, x.mean(-1).cumsum(1).clamp(-5, 5)

    def step(i):
        x, y = document(i)
        h = torch.zeros(4, 8)
        total = 0.0
        for xs, ys in zip(x.split(5, 1), y.split(5, 1), strict=True):
            h = h.detach()
            out, h = net(xs, h)
            loss = nn.functional.smooth_l1_loss(out, ys)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            total = total + loss.detach()
        return total

    return net, step
