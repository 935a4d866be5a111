"""AdamW with foreach=True at rate 1e-5 on bfloat16 weights: its steps are all smaller than half an ulp of a scale of one."""

import torch
from torch import nn

META = {
    "origin_op": "_foreach_addcdiv_",
    "also_ops": ("addcdiv_",),
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "update:scale",
    "fix": "float32 master weights, or stochastic rounding",
}


class ScaledConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 12, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(12, 1))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        h = torch.relu(self.conv(x) * self.scale)
        return self.head(h.mean(-1))


def build(fixed: bool = False):
    torch.manual_seed(433)
    dtype = torch.float32 if fixed else torch.bfloat16
    net = ScaledConv().to(dtype)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-5, foreach=True)
    gen = torch.Generator().manual_seed(533)

    def step(i):
        x = torch.randn(12, 2, 16, generator=gen).to(dtype)
        y = torch.randint(0, 3, (12,), generator=gen)
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
