"""Pairwise distances with the diagonal masked out: the root at 0 behind a mask.

Source: well-known fault (contrastive losses over all pairs)
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 10.4045294,
}


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 1.0], [2.0, 0.5], [-1.0, 0.3]]))

    def forward(self, fixed):
        off = 1 - torch.eye(3)
        if fixed:
            d = torch.sqrt(((self.x[:, None] - self.x[None]) ** 2).sum(-1) + torch.eye(3))
        else:
            d = torch.sqrt(((self.x[:, None] - self.x[None]) ** 2).sum(-1))  # ORIGIN
        loss = (off * (d - 1.0).pow(2)).sum()
        return loss


def build(fixed: bool = False):
    net = Pairs()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([[0.0, 1.0], [2.0, 0.5], [-1.0, 0.3]], dtype=torch.float64, requires_grad=True)
    off = 1 - torch.eye(3)
    d = torch.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + torch.eye(3))
    loss = (off * (d - 1.0).pow(2)).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
