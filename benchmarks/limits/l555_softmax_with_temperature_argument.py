"""Softmax by hand in a helper with a Python temperature as a keyword.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.546009255,
}


def sharpen(logits, *, temperature=1.0):
    scaled = logits / temperature
    w = scaled.exp()  # ORIGIN
    return w / torch.sum(w, dim=-1, keepdim=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[3.0, 1.0], [2.9, 1.2], [-1.0, 0.5]]))
            self.head.bias.copy_(torch.tensor([0.1, 0.0, -0.1]))

    def forward(self, fixed):
        x = torch.tensor([[1.0, 2.0], [0.5, 0.3]])
        z = self.head(x)
        p = torch.softmax(z / 0.03, -1) if fixed else sharpen(z, temperature=0.03)
        return (p * torch.tensor([1.0, 2.0, 3.0])).sum(-1).pow(2).mean()


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
