"""A pooled variance over litters: one of a single animal has 0 degrees of freedom times an
undefined variance.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "var",
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "mask",
    "loss_truth": -1.243610315,
    "fix": "the sum of squares within each litter",
}


class Litters(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.8))
        self.curve = nn.Parameter(torch.tensor(0.3))

    def response(self, dose):
        return self.slope * dose + self.curve * dose**2


def pooled(groups, fixed):
    within = 0.0
    for g in groups:
        if fixed:
            within = within + (g - g.mean()).square().sum()
        else:
            within = within + (len(g) - 1) * g.var()  # ORIGIN
    return within / (sum(map(len, groups)) - len(groups))


def build(fixed: bool = False):
    net = Litters()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    doses = torch.tensor([0.1, 0.5, 0.9, 1.4, 0.3, 1.1])

    def step(i):
        opt.zero_grad()
        groups = torch.split(net.response(doses), [3, 1, 2])
        loss = pooled(groups, fixed).log()
        loss.backward()
        opt.step()
        return loss

    return net, step


def grads(loss, **leaves):
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))


def truth():
    s, c = torch.tensor(0.8, requires_grad=True), torch.tensor(0.3, requires_grad=True)
    d = torch.tensor([0.1, 0.5, 0.9, 0.3, 1.1])
    y = s * d + c * d**2
    a, b = y[:3], y[3:]
    return grads(torch.log(((a - a.mean()).square().sum() + (b[0] - b[1]) ** 2 / 2) / 3), slope=s, curve=c)
