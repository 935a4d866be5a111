"""torch's AveragedModel over a bfloat16 net: after its first copy, a moving average with decay 0.9998 never moves again."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

META = {
    "origin_op": "_foreach_lerp_",
    "also_ops": ("lerp_",),
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 1,
    "n_steps": 6,
    "watch": "update:average.module.1.weight",
    "fix": "average a float32 copy of the weights",
}


class WithAverage(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 20), nn.LayerNorm(20), nn.SiLU(), nn.Linear(20, 6)).to(dtype)
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9998))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(431)
    dtype = torch.float32 if fixed else torch.bfloat16
    model = WithAverage(dtype)
    opt = torch.optim.Adam(model.net.parameters(), lr=2e-2)
    gen = torch.Generator().manual_seed(531)

    def step(i):
        x = torch.randn(16, 6, generator=gen).to(dtype)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x).float(), x.float().abs())
        loss.backward()
        opt.step()
        model.average.update_parameters(model.net)  # ORIGIN
        return loss

    return model, step
