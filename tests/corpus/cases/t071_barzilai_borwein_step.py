"""A Barzilai-Borwein step length is s.s / s.y; when the batch repeats at a stationary dead network both are zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "keep the old step length when s.y is zero",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
        with torch.no_grad():
            self.body[0].bias.fill_(-50.0)
            self.body[2].bias.zero_()

    def forward(self, x):
        return torch.relu(self.body(x)).squeeze(-1)


class BB:
    def __init__(self, params, guard):
        self.params, self.guard, self.last = list(params), guard, None

    @torch.no_grad()
    def step(self):
        w = torch.cat([p.flatten() for p in self.params])
        g = torch.cat([p.grad.flatten() for p in self.params])
        rate = torch.tensor(1e-3)
        if self.last is not None:
            s, y = w - self.last[0], g - self.last[1]
            if not self.guard or s @ y > 1e-12:
                rate = (s @ s) / (s @ y)  # ORIGIN
        self.last = (w.clone(), g.clone())
        for p in self.params:
            p -= rate * p.grad


def build(fixed: bool = False):
    torch.manual_seed(43)
    net = Net()
    if fixed:
        net.body[0].bias.data.zero_()
        net.body[2].bias.data.fill_(1.0)
    opt = BB(net.parameters(), fixed)
    gen = torch.Generator().manual_seed(543)

    def step(i):
        x = torch.randn(10, 4, generator=gen)
        net.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
