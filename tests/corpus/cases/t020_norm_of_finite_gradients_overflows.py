"""Every gradient of a half-precision net is finite, but their norm is not: clipping multiplies all of them by zero and nothing is learnt."""

import torch
from torch import nn

META = {
    "origin_op": "_foreach_norm",
    "also_ops": ("linalg_vector_norm", "_foreach_mul_", "clip_grad_norm_"),
    "phase": "optimizer",
    "cause": "clip-nonfinite-norm",
    "also_causes": ("dtype-overflow",),
    "symptom": "silent-zero-update",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "update:net.0.weight",
    "fix": "divide the loss scale out before the norm is taken",
}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(420)
    net = Mlp().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(520)
    loss_scale = 2.0**18

    def step(i):
        x = torch.randn(32, 10, generator=gen).half()
        y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x).float(), y)
        (loss * loss_scale).backward()
        if fixed:
            for p in net.parameters():
                p.grad.div_(loss_scale)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ORIGIN
        opt.step()
        return loss

    return net, step
