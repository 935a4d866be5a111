"""An implicit surface takes the gradient of its distance by autograd.grad and penalises sqrt of its square; behind dead units it is zero."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "1e-8 under the root",
}


class Sdf(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, p):
        return self.net(p).squeeze(-1)


def eikonal(net, p, eps):
    p = p.requires_grad_()
    d = net(p)
    (g,) = torch.autograd.grad(d.sum(), p, create_graph=True)
    slope = torch.sqrt((g * g).sum(-1) + eps)  # ORIGIN
    return d, ((slope - 1) ** 2).mean()


def build(fixed: bool = False):
    torch.manual_seed(249)
    net = Sdf()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(749)

    def step(i):
        opt.zero_grad()
        p = torch.randn(16, 3, generator=gen)
        if i == 2:
            net.net[0].bias.data.fill_(-1.0)
            p[4] = 0.0
        d, penalty = eikonal(net, p.clone(), 1e-8 if fixed else 0.0)
        loss = d.abs().mean() + 0.1 * penalty
        loss.backward()
        opt.step()
        return loss

    return net, step
