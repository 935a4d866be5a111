"""A student that is rolled back when its loss is not finite; the moving-average teacher has taken the bad weights already."""

import copy

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 8,
    "fix": "log_softmax",
}


def entropy_loss(logits, target, fixed):
    if fixed:
        return -(target * torch.log_softmax(logits, -1)).sum(-1).mean()
    return -(target * torch.log(torch.softmax(logits, -1))).sum(-1).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(620)
    net = nn.Linear(6, 4)
    teacher = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(720)
    kept = copy.deepcopy(net.state_dict())

    def step(i):
        nonlocal kept
        x = torch.randn(16, 6, generator=gen) * (1000.0 if i == 4 else 1.0)
        y = nn.functional.one_hot(torch.randint(0, 4, (16,), generator=gen), 4).float()
        target = 0.9 * y + 0.1 * torch.softmax(teacher(x), -1)
        opt.zero_grad()
        loss = entropy_loss(net(x), target, fixed)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), net.parameters(), strict=True):
                a.lerp_(b, 0.1)
        if torch.isfinite(loss):
            kept = copy.deepcopy(net.state_dict())
        else:
            net.load_state_dict(kept)
        return loss

    return net, step
