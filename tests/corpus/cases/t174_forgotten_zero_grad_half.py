"""zero_grad is called on the wrong model: the half gradients of the student pile up over the steps until they overflow."""
import copy

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("add", "step", "AccumulateGrad"),
    "phase": "backward",
    "cause": "dtype-overflow",
    "also_causes": ("exploding-gradient",),
    "symptom": "grad-inf",
    "first_bad_step": 21,
    "n_steps": 24,
    "fix": "student.zero_grad()",
}


def build(fixed: bool = False):
    torch.manual_seed(81)
    student = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).half()
    teacher = copy.deepcopy(student).requires_grad_(False)
    master = [p.detach().float() for p in student.parameters()]
    gen = torch.Generator().manual_seed(82)

    def loss_of(x):
        s, t = student(x), teacher(x)
        return nn.functional.mse_loss(s.float(), t.float() + 3.0, reduction="sum")

    @torch.no_grad()
    def update(lr, scale):
        for w, p in zip(master, student.parameters(), strict=True):
            w.sub_(lr * p.grad.float().div(scale).clamp(-0.05, 0.05))
            p.copy_(w)

    def step(i):
        x = torch.randn(32, 8, generator=gen).half()
        loss = loss_of(x)
        (student if fixed else teacher).zero_grad()
        (loss * 16.0).backward()  # ORIGIN
        update(0.01, 16.0)
        return loss

    return student, step
