"""log D(x) of a real image and log(1 - D(G(z))) of a fake, on two lines; the critic is sure and wrong in both.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 108.678264,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.disc = nn.Linear(2, 1)
        with torch.no_grad():
            self.disc.weight.copy_(torch.tensor([[8.0, -5.0]]))
            self.disc.bias.fill_(0.2)

    def forward(self, fixed):
        real = torch.tensor([[-10.0, 6.0], [0.2, 0.1]]).to(self.disc.weight)
        fake = torch.tensor([[9.0, -7.0], [-0.1, 0.3]]).to(real)
        a, b = self.disc(real), self.disc(fake)
        if fixed:
            return (nn.functional.softplus(-a) + nn.functional.softplus(b)).mean()
        real_loss = -torch.log(torch.sigmoid(a)).mean()  # ORIGIN
        fake_loss = -torch.log(1 - torch.sigmoid(b)).mean()  # ORIGIN
        return real_loss + fake_loss


def build(fixed: bool = False):
    net = Net()
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
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
