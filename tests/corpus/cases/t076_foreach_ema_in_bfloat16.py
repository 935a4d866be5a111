"""A teacher in bfloat16 follows its student by _foreach_lerp_ with weight 0.001: no element ever changes."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "_foreach_lerp_",
    "also_ops": ("lerp_",),
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "update:teacher.weight",
    "fix": "keep the teacher in float32",
}


class Pair(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.student = nn.Linear(16, 8)
        self.teacher = copy.deepcopy(self.student).to(dtype).requires_grad_(False)
        self.dtype = dtype

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x.to(self.dtype)).float()
        return F.mse_loss(self.student(x), target + x[:, :8])

    @torch.no_grad()
    def follow(self):
        slow = list(self.teacher.parameters())
        fast = [p.to(self.dtype) for p in self.student.parameters()]
        torch._foreach_lerp_(slow, fast, 0.001)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(303)
    net = Pair(torch.float32 if fixed else torch.bfloat16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(803)

    def step(i):
        x = torch.randn(12, 16, generator=gen)
        opt.zero_grad()
        loss = net(x)
        loss.backward()
        opt.step()
        net.follow()
        return loss

    return net, step
