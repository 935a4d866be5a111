"""log of a weighted sum of exponentials at 300.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -301.20546326542126,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Parameter(torch.tensor([[300.0, 299.0], [1.0, 2.0]]))
        self.w = nn.Parameter(torch.tensor([0.3, 0.7]))

    def forward(self, fixed):
        if fixed:
            evidence = torch.logsumexp(self.score + self.w.log(), -1)
            loss = -evidence.sum()
        else:
            evidence = torch.log((self.w * torch.exp(self.score)).sum(-1))  # ORIGIN
            loss = -evidence.sum()
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
