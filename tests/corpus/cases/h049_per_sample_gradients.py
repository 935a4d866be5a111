"""Vmap over grad with clipping per sample."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "vmap over grad with clipping per sample",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.seq(x)


def build(fixed: bool = False):
    torch.manual_seed(313)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-1)
    gen = torch.Generator().manual_seed(813)

    def sample_loss(p, x, y):
        return (functional_call(net, p, (x[None],)).squeeze() - y) ** 2

    each = vmap(grad(sample_loss), in_dims=(None, 0, 0))

    def step(i):
        x = torch.randn(10, 4, generator=gen)
        params = {k: p.detach() for k, p in net.named_parameters()}
        grads = each(params, x, x[:, 0])
        size = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (1.0 / (size + 1e-6)).clamp(max=1.0)
        loss = F.mse_loss(net(x).squeeze(-1), x[:, 0])
        opt.zero_grad()
        loss.backward()
        for k, p in net.named_parameters():
            p.grad = (factor.view(-1, *[1] * (grads[k].dim() - 1)) * grads[k]).mean(0)
        opt.step()
        return loss

    return net, step
