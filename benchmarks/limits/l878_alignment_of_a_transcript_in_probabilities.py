"""Alignment of frames to characters as in speech recognition: the forward recursion over
probabilities of 80 frames, and minus the log of the last state.

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
    "loss_truth": 1.5773507207,
}


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, frames):
        return self.layer(frames)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.acoustic = Acoustic()

    def forward(self, fixed):
        k = torch.arange(80.0)
        frames = torch.stack([torch.sin(0.2 * k), torch.cos(0.3 * k)], 1)
        label = torch.tensor([1, 3, 2])
        logits = self.acoustic(frames)
        if fixed:
            logs = torch.log_softmax(logits, -1)[:, label]
            none = torch.tensor([float("-inf")], dtype=logs.dtype)
            alpha = torch.cat([logs[0, :1], none, none])
            for t in range(1, 80):
                moved = torch.cat([none, alpha[:-1]])
                pairs = torch.stack([alpha, moved])
                live = pairs.max(0).values > float("-inf")
                safe = torch.where(live, pairs, torch.zeros_like(pairs))
                alpha = torch.where(live, torch.logsumexp(safe, 0), none) + logs[t]
            return -alpha[-1] / 80
        probs = torch.softmax(logits, -1)[:, label]
        alpha = torch.zeros(3)
        alpha[0] = probs[0, 0]
        for t in range(1, 80):
            stay = alpha
            move = torch.cat([torch.zeros(1), alpha[:-1]])
            alpha = (stay + move) * probs[t]
        return -torch.log(alpha[-1]) / 80  # ORIGIN


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
