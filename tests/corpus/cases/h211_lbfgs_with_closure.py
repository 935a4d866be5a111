"""L-BFGS with a strong Wolfe line search: the closure runs forward and backward several times per step."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "many losses and gradients per step, trial points included, all finite",
}


def build(fixed: bool = False):
    torch.manual_seed(611)
    net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=6, line_search_fn="strong_wolfe")
    gen = torch.Generator().manual_seed(711)
    x = 2 * torch.rand(64, 2, generator=gen) - 1
    target = torch.sin(3 * x[:, :1]) * x[:, 1:]

    def closure():
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), target)
        loss.backward()
        return loss

    def step(i):
        return opt.step(closure)

    return net, step
