"""The minibatch standard deviation layer of a critic: a collapsed generator sends four equal images."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("std-of-constant",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add the epsilon under the root",
}


class MinibatchStd(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        n, _, h, w = x.shape
        y = x - x.mean(0, keepdim=True)
        y = y.square().mean(0).add(self.eps).sqrt().mean()  # ORIGIN
        return torch.cat([x, y.expand(n, 1, h, w)], 1)


def critic(eps):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2), MinibatchStd(eps), nn.Conv2d(5, 1, 4))


def build(fixed: bool = False):
    torch.manual_seed(1398)
    net = critic(1e-8 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(1403)

    def step(i):
        opt.zero_grad()
        img = torch.randn(4, 1, 6, 6, generator=gen)
        if i == 2:
            img = img[:1].expand(4, -1, -1, -1).contiguous()
        loss = net(img).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
