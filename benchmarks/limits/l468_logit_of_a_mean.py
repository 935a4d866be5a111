"""logit of an average of sigmoids, log(m / (1 - m)), where all are scored 40.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 40.28210032,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[40.0, 41.0], [0.2, -0.4]]))

    def forward(self, fixed):
        if fixed:
            F = nn.functional
            up = torch.logsumexp(F.logsigmoid(self.z), 1)
            down = torch.logsumexp(F.logsigmoid(-self.z), 1)
            loss = (up - down).sum()
        else:
            m = torch.sigmoid(self.z).mean(1)
            loss = (torch.log(m) - torch.log(1 - m)).sum()  # ORIGIN
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
