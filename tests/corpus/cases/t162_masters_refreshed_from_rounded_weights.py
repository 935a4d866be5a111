"""Float32 masters of bfloat16 weights are filled again from those weights in every step: what the step had added is rounded away each time."""

import torch
from torch import nn

META = {
    "origin_op": "copy_",
    "also_ops": ("_foreach_copy_", "_to_copy"),
    "phase": "optimizer",
    "cause": "absorbed-update",
    "also_causes": ("dtype-underflow",),
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 6,
    "twin_rests": (0,),
    "fix": "fill the masters once, before training",
}


class Mixed:
    """bfloat16 weights for the model, float32 copies for the optimizer."""

    def __init__(self, model, rate, refresh):
        self.weights = list(model.parameters())
        self.masters = [p.detach().float().clone() for p in self.weights]
        self.opt = torch.optim.Adam(self.masters, lr=rate)
        self.refresh = refresh

    @torch.no_grad()
    def pull(self):
        for master, weight in zip(self.masters, self.weights, strict=True):
            if self.refresh:
                master.copy_(weight)  # ALSO
            master.grad = weight.grad.float()

    @torch.no_grad()
    def push(self):
        for master, weight in zip(self.masters, self.weights, strict=True):
            weight.copy_(master)  # ORIGIN

    def step(self):
        self.pull()
        self.opt.step()
        self.push()


def build(fixed: bool = False):
    torch.manual_seed(961)
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.GELU(), nn.Linear(32, 4, bias=False))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.sign(p) * 0.06)
    model.bfloat16()
    mixed = Mixed(model, 1e-4, not fixed)
    gen = torch.Generator().manual_seed(1961)

    def step(i):
        x = torch.randn(32, 16, generator=gen)
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x.bfloat16()).float(), x[:, :4])
        loss.backward()
        mixed.step()
        return loss

    return model, step
