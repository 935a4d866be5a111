"""An FP8 linear layer by hand that casts activations to float8_e5m2 without a scale: a squared feature over 57344 becomes inf.

Source: meta-pytorch/float8_experimental#33 (casts to float8 must saturate or be scaled)
"""
import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "scale by amax before the cast",
}


class Fp8Linear(nn.Linear):
    scaled = False

    def forward(self, x):
        scale = 1024.0 / x.detach().abs().amax().clamp_min(1e-6) if self.scaled else 1.0
        x8 = (x * scale).to(torch.float8_e5m2)  # ORIGIN
        w8 = self.weight.to(torch.float8_e5m2)
        return nn.functional.linear(x8.to(x.dtype) / scale, w8.to(x.dtype), self.bias)


class Regressor(nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.up = Fp8Linear(6, 32)
        self.down = Fp8Linear(32, 1)
        self.up.scaled = self.down.scaled = scaled

    def forward(self, x):
        h = self.up(x)
        return self.down(torch.relu(h) ** 2)  # squared ReLU


def build(fixed: bool = False):
    torch.manual_seed(360)
    net = Regressor(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(361)

    def step(i):
        x = torch.randn(8, 6, generator=gen)
        if i == 4:
            x[5] *= 400.0
        y = x[:, :1]
        opt.zero_grad()
        loss = nn.functional.l1_loss(net(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
