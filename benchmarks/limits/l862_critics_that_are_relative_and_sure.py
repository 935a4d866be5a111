"""Relativistic average adversarial loss, log(sigmoid(c(real) - mean c(fake))) and log(1 -
sigmoid(c(fake) - mean c(real))), of a critic that tells both apart well.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1442.0234916422,
}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = Critic()

    def forward(self, fixed):
        real = torch.tensor([[40.0, 15.0], [35.0, 22.0]])
        fake = torch.tensor([[-120.0, -90.0], [-100.0, -130.0]])
        c_real, c_fake = self.critic(real), self.critic(fake)
        up, down = c_fake - c_real.mean(), c_real - c_fake.mean()
        if fixed:
            loss = -nn.functional.logsigmoid(up).mean() - nn.functional.logsigmoid(-down).mean()
        else:
            loss_fake = -torch.log(torch.sigmoid(c_fake - c_real.mean())).mean()  # ORIGIN
            loss_real = -torch.log(1 - torch.sigmoid(c_real - c_fake.mean())).mean()
            loss = loss_fake + loss_real
        return loss


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(2 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
