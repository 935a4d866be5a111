"""Knowledge distillation: the student's softmax is logged by hand for F.kl_div; a saturated student gives log 0."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "log_softmax",
}


class Student(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable
        self.net = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x, temp):
        z = self.net(x) / temp
        if self.stable:
            return z.log_softmax(-1)
        return F.softmax(z, dim=-1).log()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(246)
    net = Student(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(746)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 7, generator=gen)
        teacher = torch.softmax(2 * torch.randn(12, 10, generator=gen), -1)
        temp = 2.0 if i < 3 else 1e-3
        loss = F.kl_div(net(x, temp), teacher, reduction="batchmean")
        loss.backward()
        opt.step()
        return loss

    return net, step
