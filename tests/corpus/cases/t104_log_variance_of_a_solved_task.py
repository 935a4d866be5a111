"""Tasks weighed by learned log-variances: one task is solved exactly, its s falls without end and exp(-s) overflows times a loss of zero."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "also_causes": ("zero-times-inf",),
    "symptom": "loss-nan",
    "first_bad_step": 18,
    "n_steps": 22,
    "fix": "clamp s from below",
}


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.depth, self.order = nn.Linear(16, 1), nn.Linear(16, 1)
        self.s = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.depth(h), self.order(h)


def build(fixed: bool = False):
    torch.manual_seed(604)
    net = TwoTasks()
    opt = torch.optim.SGD(
        [
            {"params": [*net.body.parameters(), *net.depth.parameters(), *net.order.parameters()], "lr": 0.05},
            {"params": [net.s], "lr": 5.0},
        ]
    )
    gen = torch.Generator().manual_seed(704)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        target = torch.sin(x[:, :1]) * 2
        opt.zero_grad()
        depth, order = net(x)
        losses = torch.stack([(depth - target).abs().mean(), torch.relu(order.abs() - 20.0).mean()])
        s = net.s.clamp(min=-5.0) if fixed else net.s
        weights = torch.exp(-s)  # ORIGIN
        loss = (weights * losses + s).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
