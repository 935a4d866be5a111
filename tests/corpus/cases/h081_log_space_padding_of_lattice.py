"""A lattice in log space starts at -inf except one cell; logaddexp always meets one finite operand where its
gradient is used.
"""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "one operand of each logaddexp is finite",
}


class Lattice(nn.Module):
    def __init__(self):
        super().__init__()
        self.emit = nn.Linear(3, 4)

    def forward(self, x):
        e = self.emit(x).log_softmax(-1)
        alpha = [e[0, 0]]
        for t in range(1, len(x)):
            stay, move = alpha, [None, *alpha]
            nxt = []
            for s in range(min(t + 1, 4)):
                parts = [v for v in (stay[s] if s < len(stay) else None, move[s]) if v is not None]
                nxt.append((parts[0] if len(parts) == 1 else torch.logaddexp(*parts)) + e[t, s])
            alpha = nxt
        return -torch.logaddexp(torch.full((), -torch.inf), alpha[-1])


def build(fixed: bool = False):
    torch.manual_seed(1926)
    net = Lattice()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1931)

    def step(i):
        opt.zero_grad()
        loss = net(torch.randn(6, 3, generator=gen))
        loss.backward()
        opt.step()
        return loss

    return net, step
