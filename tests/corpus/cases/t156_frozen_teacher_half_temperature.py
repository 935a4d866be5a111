"""Distillation in half precision with a temperature squared of 400 on a summed loss: the product overflows under a GradScaler that can do nothing about it."""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "also_ops": ("sum", "kl_div"),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "the loss in float32, or the mean over the batch",
}


def build(fixed: bool = False):
    torch.manual_seed(656)
    teacher = nn.Linear(12, 40).requires_grad_(False)
    with torch.no_grad():
        teacher.weight.mul_(60.0)
    net = nn.Linear(12, 40)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    gen = torch.Generator().manual_seed(756)
    warmth = 20.0

    def step(i):
        x = torch.randn(64, 12, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            student, aim = net(x), teacher(x)
            if fixed:
                student, aim = student.float(), aim.float()
        log_p = torch.log_softmax(student / warmth, -1)
        q = torch.softmax(aim / warmth, -1)
        loss = (q * (q.clamp_min(1e-4).log() - log_p)).sum() * warmth**2 * 4  # ORIGIN
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
