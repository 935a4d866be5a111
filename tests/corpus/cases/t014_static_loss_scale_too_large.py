"""A fixed loss scale of 2^27 under fp16 autocast: the gradient overflows on its way from the float32 loss into the half-precision net."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "backward",
    "cause": "loss-scale-overflow",
    "also_causes": ("dtype-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 5,
    "fix": "torch.amp.GradScaler, or a fixed scale of 2^10",
}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))

    def forward(self, x):
        return self.body(x)


def build(fixed: bool = False):
    torch.manual_seed(414)
    net = Classifier()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(514)
    loss_scale = 2.0**10 if fixed else 2.0**27

    def step(i):
        x = torch.randn(16, 12, generator=gen)
        y = torch.randint(0, 5, (16,), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)  # ORIGIN
        (loss * loss_scale).backward()  # ALSO
        for p in net.parameters():
            p.grad.div_(loss_scale)
        opt.step()
        return loss

    return net, step
