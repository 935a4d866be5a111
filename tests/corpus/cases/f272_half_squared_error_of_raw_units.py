"""A model in float16 regresses house prices in thousands; one mansion makes the squared error larger than 65504."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mse_loss",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "compute the loss in float32",
}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 12), nn.Linear(12, 12), nn.Linear(12, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        return self.layers[-1](x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(1005)
    net = Regressor().half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(1010)

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 4, generator=gen).half()
        y = (torch.rand(16, generator=gen) * 20).half()
        if i == 2:
            y[7] = 5200
        pred = net(x)
        loss = F.mse_loss(pred.float(), y.float()) if fixed else F.mse_loss(pred, y)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
