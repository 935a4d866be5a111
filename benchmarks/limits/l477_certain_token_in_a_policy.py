"""A policy gives probabilities; the trainer takes log(p[action]) of one that underflowed, and their entropy.

Source: well-known fault
"""
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
    "loss_truth": 65.00083122,
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[60.0, 10.0, -40.0], [10.0, 3.0, -5.0]]))

    def score(self, s):
        return s @ self.w

    def forward(self, s):
        return self.score(s).softmax(dim=-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = Policy()
        self.register_buffer('state', torch.tensor([[1.0, 2.0], [0.1, 0.2]]))
        self.register_buffer('action', torch.tensor([2, 0]))

    def forward(self, fixed):
        if fixed:
            logits = self.policy.score(self.state)
            loss = nn.functional.cross_entropy(logits, self.action)
        else:
            probs = self.policy(self.state)
            chosen = probs.gather(1, self.action[:, None]).squeeze(1)
            loss = -torch.log(chosen).mean()  # ORIGIN
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
