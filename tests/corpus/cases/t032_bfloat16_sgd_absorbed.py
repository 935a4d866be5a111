"""Fine-tuning a pure bfloat16 net by SGD with rate 1e-4: a norm's gain of one cannot take a step smaller than 1/512."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "update:norm.weight",
    "fix": "float32 master weights",
}


class Block(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        return self.head(x + self.down(nn.functional.gelu(self.up(self.norm(x)))))


def build(fixed: bool = False):
    torch.manual_seed(432)
    dtype = torch.float32 if fixed else torch.bfloat16
    net = Block().to(dtype)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(532)

    def step(i):
        x = torch.randn(16, 24, generator=gen).to(dtype)
        y = torch.randint(0, 4, (16,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
