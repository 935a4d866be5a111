"""Softmax over a row without a key, its output multiplied by 0 afterwards.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "_softmax",
    "phase": "forward",
    "cause": "softmax-all-masked",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 2.6323742814039695,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([[0.5, 1.0, -1.0], [2.0, 0.1, 0.3]]))

    def forward(self, fixed):
        if fixed:
            a = torch.softmax(self.s[0, :2], -1)
            out = a @ torch.tensor([[1.0], [2.0]])
            loss = out.pow(2).sum() + 0 * self.s[1].sum()
        else:
            keep = torch.tensor([[True, True, False], [False, False, False]])
            a = torch.softmax(self.s.masked_fill(~keep, float("-inf")), -1)  # ORIGIN
            out = a @ torch.tensor([[1.0], [2.0], [3.0]])
            loss = (out.squeeze(-1) * torch.tensor([1.0, 0.0])).pow(2).sum()
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
