"""bfloat16 weights with Kahan compensation: a step too small for the weight is kept in a second tensor until it counts."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 24,
    "why": "what the weight cannot take is not lost: the compensation hands it over some steps later",
}


class KahanSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                rest = self.state[p].setdefault("rest", torch.zeros_like(p))
                rest.add_(p.grad, alpha=-group["lr"])
                before = p.clone()
                p.add_(rest)
                rest.add_(before.sub_(p))


def build(fixed: bool = False):
    torch.manual_seed(826)
    net = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3)).bfloat16()
    opt = KahanSGD(net.parameters(), lr=2e-2)
    gen = torch.Generator().manual_seed(926)

    def step(i):
        x = torch.randn(32, 12, generator=gen)
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.bfloat16()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
