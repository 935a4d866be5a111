"""Forward recursion of a hidden Markov model that moves on from the second observation: the
probability of 120 observations underflows."""
import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "plain",
    "loss_truth": 1.0724808939231365,
    "fix": "logsumexp of logarithms",
}

OBS = [(k * k + k // 3) % 3 for k in range(120)]

class HMM(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.trans = nn.Parameter(torch.tensor([[1.0, -0.5], [-0.3, 0.7]]))
        self.emit = nn.Parameter(torch.tensor([[0.5, 0.0, -0.5], [-1.0, 0.2, 0.6]]))

    def forward(self):
        if self.fixed:
            return ll(self.trans, self.emit, OBS)
        A = self.trans.softmax(-1)
        B = self.emit.softmax(-1)
        prob = torch.ones(2) / 2
        for i, o in enumerate(OBS):
            if i > 0:
                prob = prob @ A
            prob = prob * B[:, o]
        return torch.log(prob.sum())  # ORIGIN


def build(fixed=False):
    net = HMM(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=0.001)

    def step(i):
        opt.zero_grad()
        loss = -net() / 120
        loss.backward()
        opt.step()
        return loss

    return net, step


def ll(trans, emit, obs):
    la, lb = trans.log_softmax(-1), emit.log_softmax(-1)
    a = lb[:, obs[0]] - math.log(2)
    for o in obs[1:]:
        a = torch.logsumexp(a[:, None] + la, 0) + lb[:, o]
    return torch.logsumexp(a, 0)


def truth():
    t = torch.tensor([[1.0, -0.5], [-0.3, 0.7]], dtype=torch.float64, requires_grad=True)
    e = torch.tensor([[0.5, 0.0, -0.5], [-1.0, 0.2, 0.6]], dtype=torch.float64, requires_grad=True)
    loss = -(ll(t,e,OBS)) / 120
    g = torch.autograd.grad(loss, [t, e])
    return {"trans": g[0], "emit": g[1]}
