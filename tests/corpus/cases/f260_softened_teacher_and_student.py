"""Distillation by softening probabilities, p ** (1 / T) over its sum, where the student's softmax has exact zeros."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "divide the logits by the temperature",
}


def soften(p, temperature):
    q = p ** (1 / temperature)  # ORIGIN
    return q / q.sum(-1, keepdim=True)


class Distiller(nn.Module):
    def __init__(self, student, temperature, stable):
        super().__init__()
        self.student, self.t, self.stable = student, temperature, stable

    def forward(self, x, teacher):
        logits = self.student(x)
        q = (logits / self.t).softmax(-1) if self.stable else soften(logits.softmax(-1), self.t)
        return (soften(teacher, self.t) - q).square().sum(-1).mean()


def build(fixed: bool = False):
    torch.manual_seed(1054)
    net = Distiller(nn.Linear(4, 5), 3.0, fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1059)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 4, generator=gen)
        if i == 2:
            x[1] *= 800
        loss = net(x, torch.rand(6, 5, generator=gen).softmax(-1))
        loss.backward()
        opt.step()
        return loss

    return net, step
