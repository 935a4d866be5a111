"""Real-space Ewald energies: the division at the diagonal has a NaN gradient, but cdist gives none to a pair at distance zero."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "cdist's own backward writes zero where the distance is zero"}


class Charges(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.q, self.shift = nn.Parameter(0.1 * torch.randn(n)), nn.Parameter(torch.zeros(n, 3))

    def forward(self, x):
        x = x + self.shift
        d = torch.cdist(x, x)
        kernel = (torch.erfc(0.5 * d) / d).fill_diagonal_(0.0)
        return 0.5 * torch.einsum("i,ij,j->", self.q, kernel, self.q)


def build(fixed=False):
    torch.manual_seed(301)
    net = Charges(5)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(302)
    x0 = 2 * torch.randn(5, 3, generator=gen)

    def step(i):
        loss = (net(x0 + 0.1 * torch.randn(5, 3, generator=gen)) + 1) ** 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
