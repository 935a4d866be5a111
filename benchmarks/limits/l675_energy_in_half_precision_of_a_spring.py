"""Energy of stiff springs from features under autocast to half: the square of 300 is out of its
range.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 21.87521538,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[100.0, 50.0], [0.5, -1.0]]))

    def forward(self, fixed):
        x = torch.tensor([[2.0, 2.0], [0.5, 0.25]])
        k = torch.tensor([3.0, 1.0])
        if fixed:
            return torch.log1p((k * self.lin(x) ** 2).sum(-1)).sum()
        with torch.autocast("cpu", dtype=torch.float16):
            stretch = self.lin(x)
            energy = (k * stretch**2).sum(-1)  # ORIGIN
        return torch.log1p(energy.float()).sum()


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
