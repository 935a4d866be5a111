"""Free energy -k T log(sum g exp(-e / k T)) of a molecule in the cold, whose levels all lie high.

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
    "loss_truth": 0.06891277766,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([1.2, 1.21, 1.5]))

    def free_energy(self, kT):
        g = torch.tensor([1.0, 3.0, 5.0])
        Z = torch.sum(g * torch.exp(-self.e / kT))
        return -kT * torch.log(Z)  # ORIGIN

    def forward(self, fixed):
        cold, warm = 0.008, 0.3
        g = torch.tensor([1.0, 3.0, 5.0])
        if fixed:
            f = [-kT * torch.logsumexp(torch.log(g) - self.e / kT, 0) for kT in (cold, warm)]
        else:
            f = [self.free_energy(kT) for kT in (cold, warm)]
        return (f[0] - 1.0) ** 2 + (f[1] - 0.5) ** 2


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
