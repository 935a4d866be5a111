"""Scores of a teacher normalised to [0, 1] by (s - min) / (max - min + 1e-8) in half: a group of equal scores divides zero by zero.

Source: lightonai/pylate#239 (Distillation returns NaN under fp16)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "normalise in float32",
}


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(12, 16)
        self.d = nn.Linear(12, 16)

    def forward(self, q, d):
        return torch.einsum("bk,bnk->bn", self.q(q), self.d(d))


def normalise(s, wide):
    s = s.float() if wide else s
    low, high = s.min(1, keepdim=True).values, s.max(1, keepdim=True).values
    return (s - low) / (high - low + 1e-8)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(344)
    net = Ranker().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(345)

    def step(i):
        q = torch.randn(6, 12, generator=gen).half()
        d = torch.randn(6, 4, 12, generator=gen).half()
        teacher = torch.randn(6, 4, generator=gen).half()
        if i == 3:
            teacher[2] = 0.75  # four copies of one passage
        opt.zero_grad()
        student = net(q, d).float()
        target = normalise(teacher, fixed).float()
        loss = nn.functional.kl_div(student.log_softmax(-1), target.softmax(-1), reduction="batchmean")
        loss.backward()
        opt.step()
        return loss

    return net, step
