"""Perplexity exp(-sum p log p) of probabilities of which one is 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.5849217835,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 0.25, 0.75]))

    def forward(self, fixed):
        if fixed:
            entropy = -torch.xlogy(self.p, self.p.clamp_min(1e-30)).sum()
            loss = torch.exp(entropy) / 3
        else:
            entropy = -(self.p * torch.log(self.p)).sum()  # ORIGIN
            loss = torch.exp(entropy) / 3
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
    true["p"].view(-1)[0] = float("inf")
    return true
