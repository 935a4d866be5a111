"""A hand-written norm layer behind a relu: its NaN gradient on an all-zero row meets closed gates only."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "relu's backward replaces the gradient at closed gates"}


class UnitRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True)
        y = x / norm.clamp_min(1e-12)
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    def backward(ctx, g):
        y, norm = ctx.saved_tensors
        return (g - y * (g * y).sum(-1, keepdim=True)) / norm


def build(fixed=False):
    torch.manual_seed(303)
    first, head = nn.Linear(5, 12, bias=False), nn.Linear(12, 3)
    net = nn.ModuleList([first, head])
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(304)

    def step(i):
        x = torch.randn(8, 5, generator=gen)
        if i >= 2:
            x[2] = 0
        loss = nn.functional.cross_entropy(head(UnitRow.apply(torch.relu(first(x)))), torch.randint(0, 3, (8,), generator=gen))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
