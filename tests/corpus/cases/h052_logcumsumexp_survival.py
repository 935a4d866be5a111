"""Cox partial likelihood: -inf marks censored patients and is masked before the sum."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "Cox partial likelihood: -inf marks censored patients and is masked before the sum",
}


class Cox(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.seq(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(317)
    net = Cox()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(817)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 4, generator=gen)
        event = torch.rand(12, generator=gen) < 0.6
        event[0] = True
        risk = net(x)
        at_risk = risk.flip(0).logcumsumexp(0).flip(0)
        ranking = at_risk.detach().masked_fill(~event, -torch.inf).topk(3).values
        loss = -(risk - at_risk)[event].mean() + 0 * ranking[0]
        loss.backward()
        opt.step()
        return loss

    return net, step
