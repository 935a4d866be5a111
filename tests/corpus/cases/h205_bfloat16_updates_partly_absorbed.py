"""bfloat16 weights under Adam at rate 1e-3: large weights miss some steps, but every parameter as a whole keeps moving."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 15,
    "why": "part of the elements absorb their step; none of the parameters loses its whole update",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 5, padding=2)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(nn.functional.silu(self.conv(x)).mean(-1))


def build(fixed: bool = False):
    torch.manual_seed(605)
    net = Net().bfloat16()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(705)

    def step(i):
        freq = torch.randint(1, 5, (16,), generator=gen)
        x = torch.sin(torch.arange(32) * 0.3 * freq.unsqueeze(1)).unsqueeze(1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.bfloat16()).float(), freq - 1)
        loss.backward()
        opt.step()
        return loss

    return net, step
