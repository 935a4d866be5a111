"""Teacher and student, the temperature annealed to its end. div-by-zero"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def build(width):
    return nn.Sequential(nn.Linear(20, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 6))


def temperature(step, late, start=4.0):
    return start * max(0.0, 1 - step / late)


def kd_loss(student, teacher, t):
    s = student / t  # FAULT
    return F.kl_div(F.log_softmax(s, -1), F.softmax(teacher / t, -1), reduction="batchmean") * t * t


def fit_teacher(teacher, w):
    opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(30):
        x = torch.randn(64, 20)
        loss = F.cross_entropy(teacher(x), (x @ w).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return teacher.eval().requires_grad_(False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--late", type=int, default=300)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(8)
    w = torch.randn(20, 6)
    teacher, student = fit_teacher(build(64), w), build(16)
    groups = [{"params": student[0].parameters(), "lr": 1e-3}, {"params": [*student[2].parameters(), *student[3].parameters()], "lr": 2e-3}]
    opt = torch.optim.AdamW(groups)
    step = 0
    while True:
        x = torch.randn(48, 20)
        y = (x @ w).argmax(1)
        t = temperature(step, args.late)
        if args.repaired:
            t = max(t, 0.5)
        with torch.inference_mode():
            soft = teacher(x)
        out = student(x)
        loss = 0.3 * F.cross_entropy(out, y) + 0.7 * kd_loss(out, soft.clone(), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step >= args.steps:
            break
    print(f"{loss.item():.4f}")


main()
