"""Lion on bfloat16 weights with its usual rate of 1e-4: a norm's gain of one cannot take a step of that size."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 12,
    "watch": "update:1.weight",
    "fix": "float32 weights",
}


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = m.mul(b1).add(p.grad, alpha=1 - b1).sign_()
                p.add_(update, alpha=-group["lr"])  # ORIGIN
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def build(fixed: bool = False):
    torch.manual_seed(612)
    dtype = torch.float32 if fixed else torch.bfloat16
    net = nn.Sequential(nn.Linear(16, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 4)).to(dtype)
    opt = Lion(net.parameters())
    gen = torch.Generator().manual_seed(712)

    def step(i):
        x = torch.randn(16, 16, generator=gen)
        y = x[:, :4].argmax(1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.to(dtype)).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
