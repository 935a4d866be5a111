"""Two workers exchange their gradients in half precision: a sum over a long sequence is finite in float32 and not in the message."""

import copy

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "also_ops": ("half", "to", "add"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "grad-inf",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "send bfloat16, or divide before the cast",
}


def all_reduce(replicas, wire):
    for group in zip(*(r.parameters() for r in replicas), strict=True):
        sent = [p.grad.to(wire) for p in group]  # ORIGIN
        mean = torch.stack([s.float() for s in sent]).mean(0)
        for p in group:
            p.grad = mean.clone()


def build(fixed: bool = False):
    torch.manual_seed(618)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    replicas = [net, copy.deepcopy(net)]
    opts = [torch.optim.SGD(r.parameters(), lr=1e-7) for r in replicas]
    gen = torch.Generator().manual_seed(718)
    wire = torch.bfloat16 if fixed else torch.float16

    def step(i):
        losses = []
        for k, replica in enumerate(replicas):
            x = torch.randn(256, 4, generator=gen)
            y = 10.0 * x.sum(1, keepdim=True) + (2000.0 if i >= 4 and k else 0.0)  # one shard in other units
            opts[k].zero_grad()
            losses.append((replica(x) - y).square().sum())
            losses[-1].backward()
        all_reduce(replicas, wire)
        for opt in opts:
            opt.step()
        return torch.stack(losses).detach().mean()

    return net, step
