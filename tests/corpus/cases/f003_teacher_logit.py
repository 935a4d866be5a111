"""Distillation matches logits recovered from the teacher's stored probabilities; one of them was rounded to exactly one."""

import torch
from torch import nn

META = {
    "origin_op": "logit",
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("inverse-function-at-edge",),
    "symptom": "loss-inf",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "torch.logit(p, eps=1e-6), or store the teacher's logits",
}


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(2, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 8, 5, padding=2), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.head(self.conv(x).amax(-1))


def build(fixed: bool = False):
    torch.manual_seed(3)
    net = Student()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(103)
    eps = 1e-6 if fixed else None

    def step(i):
        x = torch.randn(12, 2, 20, generator=gen)
        if i >= 5:
            x[3] += 12.0  # an easy example
        stored = torch.sigmoid(2.0 * x.mean((1, 2)).unsqueeze(1) + torch.tensor([-0.5, 0.0, 0.5]))
        opt.zero_grad()
        teacher = torch.logit(stored, eps=eps)  # ORIGIN
        loss = nn.functional.smooth_l1_loss(net(x), teacher)
        loss.backward()
        opt.step()
        return loss

    return net, step
