"""Style transfer matches channel standard deviations, sqrt(var) by hand; a channel that is flat has an infinite slope there."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "std-of-constant",
    "also_causes": ("sqrt-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "an epsilon under the root",
}


class Stylist(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Tanh(), nn.Conv2d(8, 3, 3, padding=1, bias=False)
        )

    def forward(self, x):
        return self.net(x)


def moments(f, eps):
    mean = f.mean((2, 3))
    var = (f - mean[:, :, None, None]).square().mean((2, 3))
    return mean, (var + eps).sqrt()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(47)
    net = Stylist()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(147)
    eps = 1e-8 if fixed else 0.0
    style = torch.rand(1, 3, 8, 8, generator=gen)

    def step(i):
        content = torch.rand(2, 3, 8, 8, generator=gen)
        if i == 3:
            content[1] = 0.0  # a black page
        opt.zero_grad()
        out = net(content)
        loss = nn.functional.mse_loss(out, content)
        for ours, theirs in zip(moments(out, eps), moments(style, eps), strict=True):
            loss = loss + 0.1 * (ours - theirs).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
