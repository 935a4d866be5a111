"""Gradients are standardised tensor by tensor before the step; the last bias has a single element, and no standard deviation."""

import torch
from torch import nn

META = {
    "origin_op": "std",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "empty-reduction",
    "also_causes": ("std-of-constant",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "leave tensors of one element alone",
}


@torch.no_grad()
def standardise(params, fixed):
    for p in params:
        if fixed and p.numel() == 1:
            continue
        spread = p.grad.std()  # ORIGIN
        p.grad.sub_(p.grad.mean()).div_(spread + 1e-8)


def build(fixed: bool = False):
    torch.manual_seed(622)
    net = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(722)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = x.sum(1, keepdim=True)
        opt.zero_grad()
        loss = nn.functional.smooth_l1_loss(net(x), y)
        loss.backward()
        standardise(net.parameters(), fixed)
        opt.step()
        return loss

    return net, step
