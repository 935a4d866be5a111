"""LoRA factors kept in float16 next to a frozen base: B starts at zero, so A has no gradient yet, and AdamW's epsilon of 1e-8 is zero in half."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "also_ops": ("_foreach_addcdiv_",),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("eps-underflow", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 5,
    "fix": "keep the factors in float32, or eps=1e-4",
}


class Adapted(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features, dtype=base.weight.dtype) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, dtype=base.weight.dtype))

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.a.T) @ self.b.T


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Adapted(nn.Linear(16, 32).half()), Adapted(nn.Linear(32, 5).half())

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def build(fixed: bool = False):
    torch.manual_seed(958)
    model = Classifier()
    groups = [{"params": trainable(model), "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=1e-3, eps=1e-4 if fixed else 1e-8)
    warm = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.5, total_iters=3)
    gen = torch.Generator().manual_seed(1958)

    def step(i):
        x = torch.randn(24, 16, generator=gen)
        y = x[:, :5].argmax(1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x.half()).float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(trainable(model), 1.0)
        opt.step()  # ORIGIN
        warm.step()
        return loss

    return model, step
