"""Variational diffusion: sigma2 = sigmoid(gamma(t)), alpha2 = 1 - sigma2, and the log of the
signal-to-noise ratio is log(alpha2 / sigma2); gamma ends at 25.

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
    "loss_truth": 0.5745844745,
}


class Schedule(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(36.0))
        self.start = nn.Parameter(torch.tensor(-11.0))

    def gamma(self, t):
        return self.start + self.slope.abs() * t


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.schedule = Schedule()
        self.denoiser = nn.Linear(3, 2)
        with torch.no_grad():
            self.denoiser.weight.copy_(torch.tensor([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]]))
            self.denoiser.bias.zero_()

    def forward(self, fixed):
        t = torch.tensor([0.1, 0.6, 1.0])
        x0 = torch.tensor([[0.4, -0.6], [1.1, 0.3], [-0.5, 0.8]])
        eps = torch.tensor([[0.1, 0.9], [-1.2, 0.4], [0.6, -0.3]])
        gamma = self.schedule.gamma(t)
        sigma2 = torch.sigmoid(gamma)
        if fixed:
            alpha2, log_snr = torch.sigmoid(-gamma), -gamma
            alpha = torch.exp(0.5 * nn.functional.logsigmoid(-gamma))
        else:
            alpha2 = 1 - sigma2
            log_snr = torch.log(alpha2 / sigma2)  # ORIGIN
            alpha = torch.sqrt(alpha2.detach())
        x_t = alpha[:, None].detach() * x0 + torch.sqrt(sigma2)[:, None] * eps
        features = torch.cat([x_t, log_snr[:, None] / 25], dim=1)
        return ((self.denoiser(features) - eps) ** 2).mean()


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
    return {name: p.grad for name, p in net.named_parameters()}
