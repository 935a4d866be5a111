"""Renyi divergence between two categoricals with a learned order that starts at the Kullback-Leibler value, alpha = 1.

Source: well-known fault (variational Renyi bounds, alpha - 1 in the denominator)
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
    "loss_truth": 0.2402290139,
    "fix": "KL + (alpha - 1) / 2 Var_p(log p / q) near 1",
}


class Renyi(nn.Module):
    def __init__(self, alpha=1.0):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))

    def forward(self, p, q, fixed=False):
        a = self.alpha
        if fixed:
            ratio = (p / q).log()
            kl = (p * ratio).sum(-1)
            var = (p * (ratio - kl[:, None]) ** 2).sum(-1)
            return kl + (a - 1) / 2 * var
        z = torch.einsum("bk,bk->b", p**a, q ** (1 - a))
        return torch.log(z) / (a - 1)  # ORIGIN


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.post = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        self.prior = nn.Parameter(torch.tensor([[0.0, 1.0], [0.5, -0.5]]))
        self.div = Renyi()


def build(fixed: bool = False):
    m = Model()
    opt = torch.optim.SGD(m.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = m.div(m.post.softmax(-1), m.prior.softmax(-1), fixed).sum()
        loss.backward()
        opt.step()
        return loss

    return m, step


def truth():
    f8 = torch.float64
    p = torch.full((2, 2), 0.5, dtype=f8)
    q = torch.tensor([[0.0, 1.0], [0.5, -0.5]], dtype=f8).softmax(-1)
    ratio = (p / q).log()
    kl = (p * ratio).sum(-1, keepdim=True)
    return {"post": p * (ratio - kl), "prior": q - p, "div.alpha": (p * (ratio - kl) ** 2).sum() / 2}
