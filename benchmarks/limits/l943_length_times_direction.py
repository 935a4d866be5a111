"""|x| (x / |x|) of x = 0, which is x.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 2.12,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [0.6, -0.8]]))

    def forward(self, fixed):
        if fixed:
            back = self.x
        else:
            n = self.x.norm(dim=1, keepdim=True)
            unit = self.x / n  # ORIGIN
            back = n * unit
        return (back - torch.tensor([0.3, 0.5])).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
