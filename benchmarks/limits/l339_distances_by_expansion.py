"""All pairwise distances by |x|^2 + |y|^2 - 2xy: 0 on the diagonal.

Source: well-known fault
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
    "loss_truth": 4.782489249,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 2.0]]))

    def forward(self, fixed):
        if fixed:
            off = ~torch.eye(3, dtype=torch.bool)
            gap = self.x[:, None] - self.x[None, :]
            d = gap[off].square().sum(-1).sqrt()
            loss = torch.exp(-d / 2).sum() + 3
        else:
            sq = self.x.pow(2).sum(1)
            d2 = sq[:, None] + sq[None, :] - 2 * self.x @ self.x.T
            d = d2.clamp(min=0).sqrt()  # ORIGIN
            loss = torch.exp(-d / 2).sum()
        return loss


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
