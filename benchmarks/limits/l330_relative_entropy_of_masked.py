"""t log(t / q) where t = 0 behind a mask.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.6931471805599453,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([0.5, 0.2, 0.3]))

    def forward(self, fixed):
        if fixed:
            t = torch.tensor([0.4, 0.6])
            p = self.q / self.q.sum()
            loss = (t * torch.log(t / p[1:])).sum()
        else:
            t = torch.tensor([0.0, 0.4, 0.6])
            p = self.q / self.q.sum()
            term = t * torch.log(t / p)  # ORIGIN
            loss = (term * (t > 0)).sum()
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
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
