"""A vision block is resumed from a state dict whose layer-scale vector holds a NaN."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mul",
    "also_ops": ("copy_",),
    "phase": "init",
    "cause": "poisoned-parameter",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "load an earlier checkpoint",
}


class Block(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, dim))
        self.gamma = nn.Parameter(1e-2 * torch.ones(dim))

    def forward(self, x):
        return x + self.gamma * self.mlp(self.norm(x))  # ORIGIN


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 4, stride=4)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(12, 5)

    def forward(self, img):
        x = self.embed(img).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def resume(net, damaged):
    state = {k: v.clone() for k, v in net.state_dict().items()}
    if damaged:
        state["blocks.1.gamma"][3] = float("nan")  # DATA
    net.load_state_dict(state)  # ALSO
    return net


def build(fixed: bool = False):
    torch.manual_seed(238)
    net = resume(Vit(), not fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(738)

    def step(i):
        opt.zero_grad()
        img = torch.rand(4, 3, 16, 16, generator=gen)
        loss = F.cross_entropy(net(img), torch.arange(4))
        loss.backward()
        opt.step()
        return loss

    return net, step
