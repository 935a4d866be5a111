"""A deep linear chain with gain four: inputs in metres are tiny and the forward pass is finite, but the gradient grows fourfold per layer."""

import torch
from torch import nn

META = {
    "origin_op": "mm",
    "also_ops": ("t", "linear"),
    "phase": "backward",
    "cause": "exploding-gradient",
    "also_causes": ("dtype-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "orthogonal initialisation with gain one, and inputs in nanometres",
}


class Chain(nn.Module):
    def __init__(self, gain, depth=70, dim=12):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(dim, dim, bias=False) for _ in range(depth)])
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight, gain)
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)  # ORIGIN
        return self.head(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(445)
    net = Chain(1.0 if fixed else 4.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(545)

    def step(i):
        x = torch.randn(8, 12, generator=gen) * (1.0 if fixed else 1e-9)
        target = x.sum(1).sign()
        opt.zero_grad()
        loss = nn.functional.huber_loss(net(x), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
