"""Cressie and Read's divergence 2 / (l (l + 1)) sum O ((O / E)^l - 1) at l = 0: twice Kullback and Leibler's.

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
    "kind": "removable",
    "loss_truth": 0.1984626184,
}


OBSERVED = (12.0, 7.0, 9.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lam = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.logits = nn.Parameter(torch.tensor([0.3, -0.1, 0.2]))

    def forward(self, fixed):
        observed = torch.tensor(OBSERVED)
        expected = observed.sum() * torch.softmax(self.logits, 0)
        log = torch.log(observed / expected)
        out = []
        for lam in self.lam:
            if fixed and float(lam.detach()) == 0:
                first = (observed * log).sum()
                second = (observed * log**2).sum() / 2
                out.append(2 * first + 2 * lam * (second - first))
                continue
            powers = observed * ((observed / expected) ** lam - 1)
            out.append(2 * powers.sum() / (lam * (lam + 1)))  # ORIGIN
        return torch.stack(out).mean()


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
