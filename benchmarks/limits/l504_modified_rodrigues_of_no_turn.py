"""Modified Rodrigues parameters w tan(t / 4) / t of rotation vectors, one of them zero.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2540783071,
}


class Turn(nn.Module):
    def forward(self, w):
        t = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
        return w * t.div(4).tan() / t  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [0.6, -0.2, 1.0]]))
        self.turn = Turn()

    def forward(self, fixed):
        if fixed:
            w = self.w[1]
            t = w.norm()
            p = torch.stack([self.w[0] / 4, w * torch.tan(t / 4) / t])
        else:
            p = self.turn(self.w)
        return (p - torch.tensor([0.1, 0.2, -0.1])).pow(2).sum()


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
