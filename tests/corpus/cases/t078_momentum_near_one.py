"""A convolutional regressor with momentum 0.99 and rate 1: the weights swing wider every step until the loss overflows."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "add_",
    "also_ops": ("_foreach_add_",),
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "oracle": "drift",
    "fix": "rate 0.001",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 16, 5, padding=2)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        h = F.leaky_relu(self.conv(x)).mean(-1)  # FIRST
        return self.out(h).squeeze(-1)  # FIRST


def build(fixed: bool = False):
    torch.manual_seed(305)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=(1e-3 if fixed else 1.0), momentum=0.99)
    gen = torch.Generator().manual_seed(805)

    def step(i):
        x = 3 * torch.randn(12, 3, 20, generator=gen)
        opt.zero_grad()
        loss = F.mse_loss(net(x), 5 * x[:, 0, 0])  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
