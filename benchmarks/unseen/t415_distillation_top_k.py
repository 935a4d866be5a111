"""Distillation on the teacher's five largest probabilities: the others are set to zero, and p * log(p) of them is NaN."""
import torch
from torch import nn

META = {
    "origin_op": "mul",
    "also_ops": ("log",),
    "phase": "forward",
    "cause": "zero-times-inf",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "torch.special.xlogy",
}


def build(fixed: bool = False):
    torch.manual_seed(321)
    student = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 9))
    teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 9)).requires_grad_(False).eval()
    student.add_module("teacher_for_checkpoint", nn.Identity())
    opt = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    gen = torch.Generator().manual_seed(322)
    temperature = 2.0

    def soft_targets(x, i):
        with torch.no_grad():
            p = torch.softmax(teacher(x) / temperature, 1)
            if i >= 5:  # from here on only the head of the distribution is stored
                top, idx = p.topk(5, dim=1)
                p = torch.zeros_like(p).scatter(1, idx, top / top.sum(1, keepdim=True))
        return p

    def step(i):
        x = torch.randn(10, 6, generator=gen)
        p = soft_targets(x, i)
        logq = torch.log_softmax(student(x) / temperature, 1)
        entropy = torch.special.xlogy(p, p) if fixed else p * torch.log(p)  # ORIGIN
        loss = (entropy - p * logq).sum(1).mean() * temperature**2
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return student, step
