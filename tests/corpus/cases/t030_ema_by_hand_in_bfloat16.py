"""The teacher of a self-distillation run is a bfloat16 moving average: decay 0.999 rounds back to where it was, every time."""

import copy

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("mul_",),
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 6,
    "watch": "update:teacher.1.weight",
    "fix": "keep the teacher in float32",
}


class Distiller(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 6))
        self.teacher = copy.deepcopy(self.student).to(dtype).requires_grad_(False)

    @torch.no_grad()
    def follow(self, decay=0.999):
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.mul_(decay).add_(fast.to(slow.dtype), alpha=1 - decay)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(430)
    net = Distiller(torch.float32 if fixed else torch.bfloat16)
    opt = torch.optim.SGD(net.student.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(530)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        view = x + 0.1 * torch.randn(16, 8, generator=gen)
        opt.zero_grad()
        with torch.no_grad():
            goal = net.teacher(x.to(net.teacher[0].weight.dtype)).float().softmax(-1)
        loss = nn.functional.cross_entropy(net.student(view), goal)
        loss.backward()
        opt.step()
        net.follow()
        return loss

    return net, step
