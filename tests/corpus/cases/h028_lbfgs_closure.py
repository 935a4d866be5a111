"""LBFGS with a strong-Wolfe line search calls its closure many times a step."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "several forward and backward passes within one optimizer step are how LBFGS works",
}


def build(fixed: bool = False):
    torch.manual_seed(28)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))
    opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    x = torch.linspace(-2, 2, 30).unsqueeze(1)
    y = torch.sin(2 * x)

    def step(i):
        def closure():
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        return opt.step(closure)

    return net, step
