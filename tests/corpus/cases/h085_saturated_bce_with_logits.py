"""Binary cross-entropy with logits of plus and minus 500."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "the stable form is used",
}


class Sharp(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1)

    def forward(self, x):
        return 500 * self.lin(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(1933)
    net = Sharp()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1938)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 3, generator=gen)
        loss = F.binary_cross_entropy_with_logits(net(x), (x[:, 0] > 0).float())
        loss.backward()
        opt.step()
        return loss

    return net, step
