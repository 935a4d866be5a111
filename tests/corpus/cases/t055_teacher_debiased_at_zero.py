"""A mean teacher is debiased like Adam's moments, with a counter that starts at zero: the first teacher is 0/0."""

import copy

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("optimizer-arithmetic",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "count the update before the division",
}


class MeanTeacher(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.sums = [torch.zeros_like(p) for p in self.student.parameters()]
        self.count = first

    @torch.no_grad()
    def follow(self, decay=0.99):
        for total, slow, fast in zip(self.sums, self.teacher.parameters(), self.student.parameters(), strict=True):
            if self.count > 0:
                total.mul_(decay).add_(fast, alpha=1 - decay)
            slow.copy_(total / (1 - decay**self.count))  # ORIGIN
        self.count += 1


def build(fixed: bool = False):
    torch.manual_seed(455)
    net = MeanTeacher(first=1 if fixed else 0)
    opt = torch.optim.SGD(net.student.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(555)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = torch.randint(0, 3, (16,), generator=gen)
        opt.zero_grad()
        logits = net.student(x)
        consistency = nn.functional.mse_loss(logits, net.teacher(x + 0.1))
        loss = nn.functional.cross_entropy(logits, y) + 0.1 * consistency
        loss.backward()
        opt.step()
        net.follow()
        return loss

    return net, step
