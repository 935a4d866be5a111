"""Gate entropy p log p by hand: a hard-sigmoid gate is exactly zero, log gives -inf and 0 * -inf is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("mul",),
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("zero-times-inf",),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "clamp the gate inside (0, 1) for the entropy",
}


class Gated(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.gate = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.Hardsigmoid())
        self.value, self.out = nn.Linear(5, 12), nn.Linear(12, 1)

    def forward(self, x):
        g = self.gate(x)
        p = g.clamp(self.floor, 1 - self.floor)
        entropy = -(p * torch.log(p) + (1 - p) * torch.log(1 - p + 1e-6)).mean()  # ORIGIN
        return self.out(g * torch.tanh(self.value(x))).squeeze(-1), entropy


def build(fixed: bool = False):
    torch.manual_seed(88)
    net = Gated(1e-5 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(188)

    def step(i):
        x = torch.randn(16, 5, generator=gen)
        if i == 4:
            x[9] *= 40.0
        y = torch.tanh(x[:, 0])
        opt.zero_grad()
        pred, entropy = net(x)
        loss = nn.functional.mse_loss(pred, y) - 0.01 * entropy
        loss.backward()
        opt.step()
        return loss

    return net, step
