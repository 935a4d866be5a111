"""Distance in the Poincare ball by the inverse hyperbolic cosine of two embeddings that coincide.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "backward",
    "cause": "acosh",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 1.044877042,
}


def poincare(u, v):
    gap = (u - v).pow(2).sum(-1)
    inner = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
    return torch.acosh(1 + 2 * gap / inner)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.same = nn.Parameter(torch.tensor([[0.2, -0.1]]))
        self.other = nn.Parameter(torch.tensor([[0.5, 0.3]]))

    def forward(self, fixed):
        v = torch.tensor([[0.2, -0.1], [-0.4, 0.1]])
        if fixed:
            return poincare(self.other, v[1:]).mean() / 2 + 0.0 * self.same.sum()
        return poincare(torch.cat([self.same, self.other]), v).mean()


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
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    true["same"][:] = float("nan")
    return true
