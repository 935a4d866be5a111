"""Tsallis entropy bonus (1 - sum p^q) / (q - 1), one q a state, mapped over the states; q = 1 is Shannon's entropy.

Source: well-known fault (entropy-regularised reinforcement learning)
"""
import torch
from torch import nn
from torch.func import vmap

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "form": "vmap",
    "loss_truth": -0.5291466234,
    "fix": "the series sum p (-l - (q - 1) l^2 / 2) with l = log p near q = 1",
}


def tsallis(logits, q):
    p = torch.softmax(logits, -1)
    return (1 - (p**q).sum()) / (q - 1)  # ORIGIN


def tsallis_stable(logits, q):
    log = torch.log_softmax(logits, -1)
    d = q - 1
    near = d.abs() < 1e-2
    e = torch.where(near, torch.ones_like(d), d)
    series = -(log.exp() * (log + d * log**2 / 2 + d**2 * log**3 / 6)).sum()
    return torch.where(near, series, (1 - (q * log).exp().sum()) / e)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[0.2, 1.0, -0.5], [0.4, 0.0, 0.9], [1.5, -1.0, 0.1]]))
        self.q = nn.Parameter(torch.tensor([2.0, 1.0, 0.5]))


def build(fixed: bool = False):
    net = Policy()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    reward = torch.tensor([[1.0, 0.2, 0.0], [0.3, 0.5, 0.1], [0.0, 0.4, 0.7]])
    entropy = vmap(tsallis_stable if fixed else tsallis)

    def step(i):
        opt.zero_grad()
        gain = (torch.softmax(net.logits, 1) * reward).sum(1)
        loss = -(gain + 0.3 * entropy(net.logits, net.q)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    def c(v):
        return torch.tensor(v, dtype=torch.float64)

    z, q = leaf([[0.2, 1.0, -0.5], [0.4, 0.0, 0.9], [1.5, -1.0, 0.1]]), leaf([2.0, 1.0, 0.5])
    p = torch.softmax(z, 1)
    gain = (p * c([[1.0, 0.2, 0.0], [0.3, 0.5, 0.1], [0.0, 0.4, 0.7]])).sum(1)
    log = p.log()
    shannon = -(p[1] * log[1]).sum() - (q[1] - 1) / 2 * (p[1] * log[1] ** 2).sum()
    h = [(1 - (p[0] ** q[0]).sum()) / (q[0] - 1), shannon, (1 - (p[2] ** q[2]).sum()) / (q[2] - 1)]
    loss = -(gain + 0.3 * torch.stack(h)).mean()
    g = torch.autograd.grad(loss, [z, q])
    return {"logits": g[0], "q": g[1]}
