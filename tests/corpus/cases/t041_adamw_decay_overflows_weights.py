"""A sweep gave AdamW the rate 1.0 with decay 40: the decoupled decay multiplies by minus 39 and the weights overflow in half the range."""

import torch
from torch import nn

META = {
    "origin_op": "mul_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "symptom": "loss-inf",
    "first_bad_step": 12,
    "n_steps": 30,
    "oracle": "drift",
    "fix": "lr=1e-3, weight_decay=0.01",
}


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(441)
    net = Conv()
    rate, decay = (1e-3, 0.01) if fixed else (1.0, 40.0)
    opt = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=decay)
    gen = torch.Generator().manual_seed(541)

    def step(i):
        x = torch.randn(6, 1, 8, 8, generator=gen)
        y = torch.randint(0, 4, (6,), generator=gen)
        opt.zero_grad()
        logits = net(x)  # FIRST
        loss = nn.functional.cross_entropy(logits, y)  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
