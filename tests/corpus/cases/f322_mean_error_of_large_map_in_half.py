"""A float16 net with a mean over a quarter of a million outputs: each output's gradient is below half precision, nothing is learnt."""
import torch
from torch import nn

META = {
    "origin_op": "mul",
    "also_ops": ["mse_loss"],
    "phase": "backward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 4,
    "watch": "grad:net.0.weight",
    "fix": "scale the loss, or take it in float32 over scaled gradients",
}


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 1, 3, padding=1))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(431)
    net = DepthNet().half()
    opt = torch.optim.SGD(net.parameters(), lr=500.0)
    gen = torch.Generator().manual_seed(432)
    scale = 2.0**12 if fixed else 1.0

    def step(i):
        x = torch.randn(4, 1, 256, 256, generator=gen)
        y = 0.001 * torch.rand(4, 1, 256, 256, generator=gen)
        opt.zero_grad()
        out = 0.01 * net(x.half())  # ORIGIN
        loss = nn.functional.mse_loss(out, y.half())  # ALSO
        (loss * scale).backward()
        for p in net.parameters():
            p.grad.div_(scale)
        opt.step()
        return loss

    return net, step
