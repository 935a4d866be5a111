"""A mixture of experts gates in half precision and takes the log of the winner's probability; small gates are flushed to zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "dtype-underflow",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "take log_softmax in float32",
}


class Gate(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.wide = wide
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        z = self.net(x)
        z = z.float() if self.wide else z
        if self.wide:
            return torch.log_softmax(z, -1)
        p = z.softmax(-1)
        return p.log()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(232)
    net = Gate(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(732)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        y = torch.randint(0, 4, (8,), generator=gen)
        if i == 2:
            net.net[2].bias.data.copy_(torch.tensor([0.0, 25.0, 0.0, 0.0]))
        loss = F.nll_loss(net(x.half()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
