"""A GradScaler that starts at 2^20: its first steps are skipped while the scale comes down, then forty steps train."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 45,
    "skipped_steps": (0, 1, 2, 3, 5),
    "why": "skipping while the loss scale calibrates is what dynamic scaling is for; no parameter ever sees the infinite gradients",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 12, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(192, 4))

    def forward(self, x):
        return self.body(x)


def build(fixed: bool = False):
    torch.manual_seed(601)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    gen = torch.Generator().manual_seed(701)

    def step(i):
        x = torch.randn(12, 2, 16, generator=gen)
        y = (x[:, 0].mean(-1) > 0).long() + 2 * (x[:, 1].mean(-1) > 0).long()
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
