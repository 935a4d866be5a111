"""Fine-tuning starts from a checkpoint that was written after its run had diverged: one row of one weight is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "addmm",
    "also_ops": ("copy_", "linear"),
    "phase": "init",
    "cause": "poisoned-parameter",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "load an earlier checkpoint; check isfinite of what was loaded",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
        self.middle = nn.Linear(24, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        h = self.middle(self.encoder(x))  # ORIGIN
        return self.head(torch.relu(h) + h)


def pretrained(diverged):
    torch.manual_seed(446)
    weights = Net().state_dict()
    if diverged:
        weights["middle.weight"][7] = float("nan")  # DATA
    return weights


def build(fixed: bool = False):
    weights = pretrained(diverged=not fixed)
    net = Net()
    net.load_state_dict(weights)  # ALSO
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(546)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        y = torch.randint(0, 3, (16,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
