"""The teacher is stored in half to save memory; a weight of the student grows past 65504 and the copy is inf."""
import copy

import torch
from torch import nn

META = {
    "origin_op": "copy_",
    "also_ops": ("_to_copy",),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 7,
    "n_steps": 14,
    "fix": "a teacher in float32",
}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 1))
        self.scale = nn.Parameter(torch.tensor(1.0e4))

    def forward(self, x):
        return self.scale.to(x.dtype) * self.net(x).squeeze(-1)


@torch.no_grad()
def refresh(teacher, student):
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        t.copy_(s)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(222)
    student = Regressor()
    teacher = copy.deepcopy(student).to(torch.float32 if fixed else torch.float16).requires_grad_(False)
    opt = torch.optim.Adam(
        [{"params": student.net.parameters(), "lr": 1e-3}, {"params": [student.scale], "lr": 9e3}]
    )
    gen = torch.Generator().manual_seed(223)

    def step(i):
        x = torch.randn(24, 5, generator=gen)
        y = 3e5 * x[:, 0].abs()  # prices in cents
        refresh(teacher, student)
        out = student(x)
        with torch.no_grad():
            soft = teacher(x.to(next(teacher.parameters()).dtype) * 0.05).float()
        loss = nn.functional.l1_loss(out, y) / 1e5 + 1e-3 * nn.functional.l1_loss(out, soft) / 1e5
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return student, step
