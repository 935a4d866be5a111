"""KL of two diagonal Gaussians by their variances; both log-variances are -110.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.1213934575,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Parameter(torch.tensor([0.1, 0.3]))
        self.lv1 = nn.Parameter(torch.tensor([-110.0, 0.2]))
        self.m2 = nn.Parameter(torch.tensor([0.1, 0.1]))
        self.lv2 = nn.Parameter(torch.tensor([-110.5, -0.1]))

    def forward(self, fixed):
        if fixed:
            r = torch.exp(self.lv1 - self.lv2)
            d = (self.m1 - self.m2) * torch.exp(-self.lv2 / 2)
            return 0.5 * (self.lv2 - self.lv1 + r + d.pow(2) - 1).sum()
        v1, v2 = torch.exp(self.lv1), torch.exp(self.lv2)
        kl = 0.5 * (torch.log(v2 / v1) + (v1 + (self.m1 - self.m2).pow(2)) / v2 - 1)  # ORIGIN
        return kl.sum()


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
