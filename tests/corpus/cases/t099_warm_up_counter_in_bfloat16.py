"""A warm-up that counts its steps in a buffer, which model.to(bfloat16) took along: at 256 adding 1 changes nothing any more."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("add",),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "absorbed-update",
    "symptom": "silent-zero-update",
    "first_bad_step": 4,
    "n_steps": 12,
    "watch": "update:seen",
    "fix": "count in an integer",
}
WARM_UP = 1000


class Regressor(nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("seen", torch.tensor(seen))

    def forward(self, x):
        return self.net(x)

    def rate(self):
        with torch.no_grad():
            self.seen.add_(1)  # ORIGIN
        return 0.05 * min(1.0, float(self.seen) / WARM_UP)


def build(fixed: bool = False):
    torch.manual_seed(473)
    model = Regressor(252 if fixed else 252.0).to(torch.bfloat16)  # resumed after 252 steps
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(573)

    def step(i):
        x = torch.randn(32, 6, generator=gen)
        opt.param_groups[0]["lr"] = model.rate()
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x.bfloat16()).float(), x[:, :1] * 3)
        loss.backward()
        opt.step()
        return loss

    return model, step
