"""Sharpness-aware minimisation in its two steps; a batch without a valid target has no gradient. norm-at-zero div-by-zero"""
import argparse

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, eps=0.0, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.eps = eps

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norms = [p.grad.norm(p=2) for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack(norms).norm(p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + self.eps)  # FAULT
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                e_w = p.grad * scale
                p.add_(e_w)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


def loss_of(model, x, y, valid):
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    return (each * valid).sum() / valid.sum().clamp_min(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--late", type=int, default=300)
    p.add_argument("--repaired", action="store_true")
    args = p.parse_args()
    torch.manual_seed(12)
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, eps=1e-12 if args.repaired else 0.0, lr=0.05, momentum=0.9)
    w = torch.randn(10, 4)
    for step in range(args.steps):
        x = torch.randn(32, 10)
        y = (x @ w).argmax(1)
        valid = (torch.rand(32) > 0.2).float()
        if step == args.late:
            valid = torch.zeros(32)
        loss = loss_of(model, x, y, valid)
        loss.backward()
        optimizer.first_step(zero_grad=True)
        loss_of(model, x, y, valid).backward()
        optimizer.second_step(zero_grad=True)
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
