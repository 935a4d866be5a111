"""Ratings of players from games: a Function of its own keeps the odds e = exp(d) for its backward,
and the favourite, 820 ahead, loses; log(1 + e) is 820 and its slope 1, where both are inf, NaN.

Source: well-known fault (odds kept for a hand-written derivative)
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "range",
    "loss_truth": 410.1855503,
    "fix": "softplus(d), and sigmoid(d) for its slope",
}
FAVOURITE, WINNER = [0, 2], [1, 1]


class Surprise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gap):
        odds = torch.exp(gap)  # ORIGIN
        ctx.save_for_backward(gap, odds)
        return torch.log(1 + odds)

    @staticmethod
    def backward(ctx, grad):
        gap, odds = ctx.saved_tensors
        return grad * odds / (1 + odds)


class Ratings(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.tensor([821.0, 1.0, 0.2]))

    def forward(self, fixed=False):
        gap = self.level[FAVOURITE] - self.level[WINNER]
        surprise = nn.functional.softplus(gap) if fixed else Surprise.apply(gap)
        return surprise.mean()


def build(fixed: bool = False):
    net = Ratings()
    opt = torch.optim.SGD(net.parameters(), lr=1e-1)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    upset = 1 / (1 + torch.exp(torch.tensor(0.8, dtype=torch.float64)))
    return {"level": torch.stack([torch.ones_like(upset), -1 - upset, upset]) / 2}
