"""The loss is scaled, but opt.step() is called instead of scaler.step(opt): the weights move by 4096 times the gradient."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "also_causes": ("learning-rate", "exploding-gradient"),
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 5,
    "oracle": "drift",
    "fix": "scaler.step(opt); scaler.update()",
}


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
        )

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(416)
    net = ConvNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    gen = torch.Generator().manual_seed(516)

    def step(i):
        x = torch.randn(8, 1, 10, 10, generator=gen)
        y = torch.randint(0, 4, (8,), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)  # FIRST
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if fixed:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()  # ORIGIN
        return loss

    return net, step
