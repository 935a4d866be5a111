"""Zero gradients that are exact, not underflow: a zero-initialised output (LoRA), a relu branch that is off, a scalar gate times zero, in half."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 6}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 8)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)
        self.off = nn.Linear(6, 8)
        nn.init.constant_(self.off.bias, -50.0)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = self.base(x) + self.up(self.down(x)) + torch.relu(self.off(x))
        return self.head(torch.relu(h))


def build(fixed: bool = False):
    torch.manual_seed(222)
    net = Net().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    gen = torch.Generator().manual_seed(223)

    def step(i):
        x = torch.randn(32, 6, generator=gen)
        loss = nn.functional.cross_entropy(net(x.half()).float(), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
