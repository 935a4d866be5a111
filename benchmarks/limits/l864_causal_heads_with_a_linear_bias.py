"""Causal attention by hand in two heads with a linear bias of the distance: exponentials of the
scores times the mask, over their sum; the scores are large.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "inf-minus-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 205.7317591605,
}


class Attention(nn.Module):
    def __init__(self, dim=4, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

    def forward(self, x, fixed):
        n, d = x.shape
        q, k, v = self.qkv(x).view(n, 3, self.heads, d // self.heads).permute(1, 2, 0, 3)
        steps = torch.arange(n)
        distance = (steps[None, :] - steps[:, None]).to(x.dtype)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        scores = scores + self.slopes[:, None, None] * distance
        mask = torch.tril(torch.ones(n, n))
        if fixed:
            weights = torch.softmax(scores.masked_fill(mask == 0, float("-inf")), -1)
        else:
            weights = torch.exp(scores) * mask
            weights = weights / weights.sum(-1, keepdim=True)  # ORIGIN
        return (weights @ v).transpose(0, 1).reshape(n, d)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, fixed):
        x = torch.tensor([[1.0, 0.5, -0.3, 0.2], [30.0, -12.0, -19.0, 20.0], [0.4, 0.1, 0.3, -0.7]])
        return (self.attention(x, fixed) ** 2).mean()


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(3 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
