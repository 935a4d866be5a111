"""Log of the mean square of a half layer's features of 500 under autocast.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 19.16515923,
}


class RMS(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([1.0, 0.5]))

    def forward(self, x):
        return (x.pow(2).mean(-1) * self.g).log()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2, bias=False)
        self.rms = RMS()
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[128.0, 64.0], [32.0, -64.0]]))

    def forward(self, fixed):
        x = torch.tensor([[3.0, 2.0], [0.5, 0.25]])
        if fixed:
            return self.rms(self.lin(x)).float().sum()
        with torch.autocast("cpu", dtype=torch.float16):
            y = self.rms(self.lin(x))
        return y.float().sum()


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
