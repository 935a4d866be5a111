"""Unlikelihood training of a language model: -log p(next word) - log(1 - p(repeated word)) with
one softmax; the model is sure of the repetition.

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
    "loss_truth": 40.7804987727,
}


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.out = nn.Linear(3, 4)

    def forward(self, tokens):
        return self.out(self.embed(tokens))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = LanguageModel()

    def forward(self, fixed):
        tokens = torch.tensor([0, 1, 2])
        following = torch.tensor([2, 1, 2])
        repeated = torch.tensor([0, 3, 0])
        logits = self.model(tokens)
        rows = torch.arange(3)
        if fixed:
            logs = torch.log_softmax(logits, -1)
            others = logs.masked_fill(nn.functional.one_hot(repeated, 4) == 1, float("-inf"))
            return -(logs[rows, following] + torch.logsumexp(others, -1)).mean()
        probs = torch.softmax(logits, dim=-1)
        likelihood = torch.log(probs[rows, following])
        unlikelihood = torch.log(1 - probs[rows, repeated])  # ORIGIN
        return -(likelihood + unlikelihood).mean()


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(16 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
    return {name: p.grad for name, p in net.named_parameters()}
