"""SimCLR loss by hand: exponentials of cosine similarities over 0.005, the diagonal masked out,
and minus the log of the positive's share.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 139.1266819544,
}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        z = self.layer(x)
        return z / z.norm(dim=1, keepdim=True)


def nt_xent(z1, z2, temperature):
    n = z1.shape[0]
    z = torch.cat([z1, z2])
    sim = torch.exp(z @ z.t() / temperature)
    mask = 1 - torch.eye(2 * n)
    positive = torch.exp((z1 * z2).sum(1) / temperature)
    positive = torch.cat([positive, positive])
    return -torch.log(positive / (sim * mask).sum(1)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, fixed):
        a = torch.tensor([[1.0, 0.2, -0.3], [-0.4, 0.9, 0.5]])
        b = torch.tensor([[-0.5, 0.8, 0.7], [0.9, 0.3, -0.2]])
        z1, z2 = self.encoder(a), self.encoder(b)
        if fixed:
            z = torch.cat([z1, z2])
            sim = (z @ z.t() / 0.005).masked_fill(torch.eye(4) == 1, float("-inf"))
            return nn.functional.cross_entropy(sim, torch.tensor([2, 3, 0, 1])) * 1.0
        return nt_xent(z1, z2, 0.005)


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(0.8 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    return {name: p.grad for name, p in net.named_parameters()}
