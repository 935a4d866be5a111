"""A redundancy-reduction loss takes torch.corrcoef of the embeddings; a dead unit is constant over the batch."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "std-of-constant",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add noise of 1e-3 to the embeddings",
}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 5), nn.ReLU())
        nn.init.constant_(self.net[2].bias, 2.0)

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(321)
    net = Encoder()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(821)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 6, generator=gen)
        if i == 2:
            net.net[2].bias.data[3] = -30.0
        z = net(x)
        if fixed:
            z = z + 1e-3 * torch.randn(z.shape, generator=gen)
        c = torch.corrcoef(z.t())  # ORIGIN
        loss = (c - torch.eye(5)).square().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
