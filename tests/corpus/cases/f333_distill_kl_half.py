"""Distillation by hand in half: the teacher sharpens, its probabilities flush to zero, and p * (log p - log q) is 0 times -inf.

Source: common report (KL written as p * log(p / q) under fp16 gives NaN once the teacher is confident)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("_softmax", "mul"),
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("dtype-underflow", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 6,
    "n_steps": 9,
    "fix": "log_softmax of both, in float32",
}


class Mlp(nn.Module):
    def __init__(self, width, classes=10):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, classes))

    def forward(self, x):
        return self.net(x)


def kd(student, teacher, stable):
    if stable:
        return nn.functional.kl_div(student.float().log_softmax(-1), teacher.float().log_softmax(-1), log_target=True, reduction="batchmean")
    p = teacher.softmax(-1)  # ALSO
    log_p = torch.log(p)  # ORIGIN
    return (p * (log_p - student.log_softmax(-1))).sum(-1).mean()


def build(fixed: bool = False):
    torch.manual_seed(336)
    teacher, student = Mlp(32).half(), Mlp(8).half()
    for p in teacher.parameters():
        p.requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(337)

    def step(i):
        x = torch.randn(16, 12, generator=gen).half()
        temperature = max(4.0 * 0.5**i, 0.06)  # annealed
        with torch.no_grad():
            soft = teacher(x) / temperature
        opt.zero_grad()
        loss = kd(student(x), soft, fixed)
        loss.backward()
        opt.step()
        with torch.no_grad():
            agree = (student(x).argmax(-1) == soft.argmax(-1)).float().mean().item()
        return loss + 0 * agree

    return student, step
