"""The rate was given in thousandths but read as a number: Adam moves each weight of a deep net by 1000, and the activations overflow."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 1,
    "n_steps": 4,
    "oracle": "drift",
    "fix": "lr=1e-3",
}


class Deep(nn.Module):
    def __init__(self, dim=32, depth=9):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(dim, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # FIRST
        return self.head(x)


def build(fixed: bool = False):
    torch.manual_seed(444)
    net = Deep()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3 if fixed else 1000.0)
    gen = torch.Generator().manual_seed(544)

    def step(i):
        x = torch.randn(16, 32, generator=gen)
        y = torch.randint(0, 3, (16,), generator=gen)
        opt.zero_grad()
        logits = net(x)  # FIRST
        loss = nn.functional.cross_entropy(logits, y)  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
