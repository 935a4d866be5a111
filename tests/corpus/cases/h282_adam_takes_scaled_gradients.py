"""A hand-made scale of 1024 that is never divided out before Adam: its updates do not depend on the size of the gradient."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "the updates of Adam do not depend on the size of the gradients",
}


def build(fixed: bool = False):
    torch.manual_seed(330)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(331)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))
        opt.zero_grad()
        (loss * 1024).backward()
        opt.step()
        return loss

    return net, step
