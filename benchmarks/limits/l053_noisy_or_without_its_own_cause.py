"""Noisy-or with blame: the product over the other causes is taken as total / own factor; a cause that is certain has a factor of 0.

Source: well-known fault (leave-one-out product by division)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1585408628,
    "fix": "products from the left and from the right",
}


def leave_one_out(f, fixed):
    if fixed:
        ones = torch.ones_like(f[:, :1])
        left = torch.cumprod(torch.cat([ones, f[:, :-1]], 1), 1)
        right = torch.cumprod(torch.cat([ones, f[:, 1:].flip(1)], 1), 1).flip(1)
        return left * right
    return f.prod(dim=1, keepdim=True) / f  # ORIGIN


class NoisyOr(nn.Module):
    def __init__(self):
        super().__init__()
        self.activation = nn.Parameter(torch.tensor([[0.2, 1.0, 0.5], [0.3, 0.6, 0.1]]))
        self.strength = nn.Parameter(torch.tensor([0.9, 1.0, 0.7]))


def build(fixed: bool = False):
    net = NoisyOr()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    credit = torch.tensor([[0.1, 0.7, 0.2], [0.3, 0.5, 0.2]])

    def step(i):
        opt.zero_grad()
        fail = 1 - net.activation * net.strength
        blame = net.activation * net.strength * leave_one_out(fail, fixed)
        loss = (blame - credit).pow(2).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    f8 = torch.float64
    a = torch.tensor([[0.2, 1.0, 0.5], [0.3, 0.6, 0.1]], dtype=f8)
    s = torch.tensor([0.9, 1.0, 0.7], dtype=f8)
    credit = [[0.1, 0.7, 0.2], [0.3, 0.5, 0.2]]
    p = (a * s).tolist()
    gp = torch.zeros(2, 3, dtype=f8)
    for b in range(2):
        f = [1 - v for v in p[b]]
        for i in range(3):
            j, k = (m for m in range(3) if m != i)
            left = 2 * (p[b][i] * f[j] * f[k] - credit[b][i])
            gp[b, i] += left * f[j] * f[k]
            gp[b, j] -= left * p[b][i] * f[k]
            gp[b, k] -= left * p[b][i] * f[j]
    return {"activation": gp * s, "strength": (gp * a).sum(0)}
