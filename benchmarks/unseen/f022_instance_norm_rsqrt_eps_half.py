"""A hand-written instance norm in half with eps 1e-8: a channel that is constant in one picture gives rsqrt(0) = inf, times zero."""
import torch
from torch import nn

META = {
    "origin_op": "rsqrt", "phase": "forward", "cause": "eps-underflow", "also_causes": ("std-of-constant", "div-by-zero"), "symptom": "loss-nan",
    "first_bad_step": 2, "n_steps": 5, "fix": "eps=1e-4, or statistics in float32",
}


class InstanceNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean((-2, -1), keepdim=True)
        var = (x - mean).square().mean((-2, -1), keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(42)
    net = nn.Sequential(InstanceNorm(1e-3 if fixed else 1e-8), nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 2)).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(43)

    def step(i):
        x = torch.rand(4, 3, 8, 8, generator=gen)
        if i >= 2:
            x[1, 2] = 0.5  # a picture without blue
        y = torch.randint(0, 2, (4,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.half()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
