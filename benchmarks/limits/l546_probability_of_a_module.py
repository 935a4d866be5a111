"""Policy loss by the log of a sampled probability of a network's softmax.

Source: well-known fault
"""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 105.2665485,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3, bias=False))
        with torch.no_grad():
            self.body[0].weight.copy_(torch.tensor([[10.0, 1.0], [2.0, -1.0]]))
            self.body[1].weight.copy_(torch.tensor([[10.0, 1.0], [-10.0, 2.0], [0.3, 0.2]]))

    def forward(self, fixed):
        x = torch.tensor([[1.0, 0.5], [0.01, 0.1]])
        if fixed:
            return -F.log_softmax(self.body(x), 1)[torch.arange(2), torch.tensor([1, 2])].mean()
        prob = torch.softmax(self.body(x), dim=1)
        chosen = prob.gather(1, torch.tensor([[1], [2]])).squeeze(1)
        return -chosen.log().mean()  # ORIGIN


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
