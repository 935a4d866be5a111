"""Mean teacher whose moving average is debiased by 1 - decay**t: a resume restores the average but not its counter, and t is 0."""
import copy

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "also_phase": "optimizer",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 9,
    "fix": "save the counter with the average",
}


class EMA:
    def __init__(self, model, decay=0.95):
        self.decay, self.t = decay, 0
        self.shadow = [torch.zeros_like(p) for p in model.parameters()]
        self.update(model)

    @torch.no_grad()
    def update(self, model):
        self.t += 1
        for s, p in zip(self.shadow, model.parameters(), strict=True):
            s.mul_(self.decay).add_(p, alpha=1 - self.decay)

    @torch.no_grad()
    def copy_to(self, teacher):
        for s, p in zip(self.shadow, teacher.parameters(), strict=True):
            p.copy_(s / (1 - self.decay**self.t))  # ORIGIN

    def state_dict(self):
        return {"shadow": [s.clone() for s in self.shadow], "t": self.t}

    def load_state_dict(self, state, fixed):
        self.shadow = [s.clone() for s in state["shadow"]]
        self.t = state["t"] if fixed else 0


def build(fixed: bool = False):
    torch.manual_seed(24)
    student = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    ema = EMA(student)
    gen = torch.Generator().manual_seed(25)

    def step(i):
        if i == 5:  # the job was preempted and comes back
            ema.load_state_dict(ema.state_dict(), fixed)
        x = torch.randn(24, 6, generator=gen)
        y = x[:, :3].argmax(1)
        ema.copy_to(teacher)
        noisy = x + 0.1 * torch.randn(24, 6, generator=gen)
        logits = student(noisy)
        consistency = nn.functional.mse_loss(logits.softmax(-1), teacher(x).softmax(-1))
        loss = nn.functional.cross_entropy(logits, y) + min(1.0, i / 4) * consistency
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(student)
        return loss

    return student, step
