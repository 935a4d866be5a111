"""Circle loss, log(1 + sum exp(g a (s_n - m)) sum exp(-g a (s_p - 1 + m))), with a scale of 256.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 257.28,
}


class CircleLoss(nn.Module):
    def __init__(self, m, gamma):
        super().__init__()
        self.m, self.gamma = m, gamma

    def logits(self, sp, sn):
        ap = torch.relu(1 + self.m - sp.detach())
        an = torch.relu(sn.detach() + self.m)
        return -ap * (sp - 1 + self.m) * self.gamma, an * (sn - self.m) * self.gamma

    def forward(self, sp, sn):
        lp, ln = self.logits(sp, sn)
        return torch.log(1 + torch.exp(ln).sum() * torch.exp(lp).sum())  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sp = nn.Parameter(torch.tensor([0.4, 0.3]))
        self.sn = nn.Parameter(torch.tensor([0.7, 0.8, 0.1]))
        self.loss = CircleLoss(0.25, 256.0)

    def forward(self, fixed):
        if fixed:
            lp, ln = self.loss.logits(self.sp, self.sn)
            return F.softplus(torch.logsumexp(ln, 0) + torch.logsumexp(lp, 0))
        return self.loss(self.sp, self.sn)


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
