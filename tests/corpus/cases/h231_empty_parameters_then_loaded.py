"""Parameters made by torch.empty, as in libraries that load weights right after: what memory held is never read."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "every element is written before it is read",
    "phase": "init",
}


class Head(nn.Module):
    def __init__(self, width=8, out=3):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, width))
        self.scale = nn.Parameter(torch.empty(out))
        self.register_buffer("centre", torch.empty(width))

    def forward(self, x):
        return nn.functional.linear(x - self.centre, self.weight) * self.scale


def build(fixed: bool = False):
    torch.manual_seed(831)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # empty memory then holds NaN
    net = Head()
    torch.use_deterministic_algorithms(before)
    net.load_state_dict({"weight": torch.randn(3, 8) / 3, "scale": torch.ones(3), "centre": torch.zeros(8)})
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(931)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), x[:, :3].argmax(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
