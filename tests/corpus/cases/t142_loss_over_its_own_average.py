"""Every loss is divided by its own moving average, so that tasks weigh alike; the averages start at zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "start with the first losses",
}


class Balanced(nn.Module):
    def __init__(self, tasks, begin):
        super().__init__()
        self.body = nn.Linear(5, tasks)
        self.register_buffer("average", torch.full((tasks,), begin))

    def forward(self, x, y):
        losses = (self.body(x) - y).square().mean(0)
        weighed = losses / self.average.clone()  # ORIGIN
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * losses)
        return weighed.sum()


def build(fixed: bool = False):
    torch.manual_seed(642)
    net = Balanced(3, 1.0 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(742)

    def step(i):
        x = torch.randn(24, 5, generator=gen)
        opt.zero_grad()
        loss = net(x, x[:, :3] * torch.tensor([1.0, 10.0, 0.1]))
        loss.backward()
        opt.step()
        return loss

    return net, step
