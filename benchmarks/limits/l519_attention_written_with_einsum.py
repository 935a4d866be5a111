"""Attention by einsum with weights normalised after the product; a score of 96.

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
    "loss_truth": 0.6733490515,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[[8.0, 2.0], [0.5, 0.1]]]))
        self.k = nn.Parameter(torch.tensor([[[12.0, 0.0], [11.95, 0.3], [1.0, 1.0]]]))
        self.v = nn.Parameter(torch.tensor([[[1.0], [-2.0], [0.5]]]))

    def forward(self, fixed):
        score = torch.einsum("bqd,bkd->bqk", self.q, self.k)
        if fixed:
            out = torch.einsum("bqk,bkd->bqd", torch.softmax(score, -1), self.v)
        else:
            e = score.exp()  # ORIGIN
            out = torch.einsum("bqk,bkd->bqd", e, self.v) / e.sum(-1, keepdim=True)
        return out.square().sum()


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
