"""log(1 - sigmoid(x)) at 60.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 21.1467298995204,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit = nn.Parameter(torch.tensor([60.0, -1.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            y = torch.tensor([0.0, 1.0, 0.0])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(self.logit, y)
        else:
            p = torch.sigmoid(self.logit)
            y = torch.tensor([0.0, 1.0, 0.0])
            loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # ORIGIN
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
