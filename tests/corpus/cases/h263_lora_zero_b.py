"""LoRA on a frozen bfloat16 base: B starts at zero, so A has a gradient of exactly zero in the first step."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "B is zero at first, and with it the gradient of A",
}


class Lora(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.02)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        low = (x.to(self.a.dtype) @ self.a.t()) @ self.b.t()
        return self.base(x) + (self.scale * low).to(x.dtype)


def build(fixed: bool = False):
    torch.manual_seed(1266)
    net = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 5)).to(torch.bfloat16).requires_grad_(False)
    net[0], net[2] = Lora(net[0]), Lora(net[2])
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.01, 1.0, total_iters=6)
    gen = torch.Generator().manual_seed(1267)

    def step(i):
        x = torch.randn(16, 12, generator=gen).to(torch.bfloat16)
        y = torch.randint(0, 5, (16,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        opt.step()
        sched.step()
        return loss

    return net, step
