"""Contrastive scores in half times the exponential of a learned scale without a cap: the product overflows when the scale has grown."""
import torch
from torch import nn

META = {
    "origin_op": "mul", "phase": "forward", "cause": "dtype-overflow", "symptom": "loss-nan",
    "first_bad_step": 6, "n_steps": 12, "fix": "clamp the scale at log(100)",
}


class TwoTower(nn.Module):
    def __init__(self, cap):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(4.0))
        self.cap = cap

    def forward(self, x, y):
        a, b = self.a(x), self.b(y)
        s = self.scale.clamp(max=4.6) if self.cap else self.scale
        return (a @ b.T) * s.exp().to(a.dtype)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(96)
    net = TwoTower(fixed)
    opt = torch.optim.Adam([{"params": [net.scale], "lr": 0.8}, {"params": [*net.a.parameters(), *net.b.parameters()]}], lr=0.02)
    gen = torch.Generator().manual_seed(97)

    def step(i):
        x = 3 * torch.randn(16, 8, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x, x.roll(1, -1))
        target = torch.arange(16)
        loss = nn.functional.cross_entropy(logits.float(), target) - 1000 * net.scale
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
