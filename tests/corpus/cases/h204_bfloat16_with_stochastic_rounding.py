"""Pure bfloat16 weights with stochastic rounding by hand: most small steps round to nothing, but on average all of them count."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 20,
    "why": "each parameter moves, by whole ulps now and then instead of by fractions always",
}


@torch.no_grad()
def sgd_stochastic(params, lr, gen):
    for p in params:
        exact = p.float() - lr * p.grad.float()
        noise = torch.randint(0, 1 << 16, exact.shape, generator=gen, dtype=torch.int32)
        bits = (exact.view(torch.int32) + noise) & ~0xFFFF
        p.copy_(bits.view(torch.float32))


def build(fixed: bool = False):
    torch.manual_seed(604)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)).bfloat16()
    gen = torch.Generator().manual_seed(704)

    def step(i):
        x = torch.randn(32, 6, generator=gen)
        net.zero_grad()
        loss = nn.functional.mse_loss(net(x.bfloat16()).float(), x[:, :2] * x[:, 2:4])
        loss.backward()
        sgd_stochastic(net.parameters(), 0.05, gen)
        return loss

    return net, step
