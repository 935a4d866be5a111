"""Jensen-Shannon divergence of two softmaxes with a class that both leave out: 0 * log(0 / 0).

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
    "kind": "masked",
    "loss_truth": 0.08621601704,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.2, 1.0, -0.5, 0.3]]))
        self.b = nn.Parameter(torch.tensor([[0.9, -0.3, 0.4, 0.1]]))
        self.register_buffer('keep', torch.tensor([[1.0, 1.0, 1.0, 0.0]]))

    def forward(self, fixed):
        if fixed:
            p, q = torch.softmax(self.a, 1)[:, :3], torch.softmax(self.b, 1)[:, :3]
            m = 0.5 * (p + q)
            loss = 0.5 * (p * torch.log(p / m)).sum() + 0.5 * (q * torch.log(q / m)).sum()
        else:
            p, q = torch.softmax(self.a, 1) * self.keep, torch.softmax(self.b, 1) * self.keep
            m = 0.5 * (p + q)
            loss = 0.5 * (p * torch.log(p / m)).sum() + 0.5 * (q * torch.log(q / m)).sum()  # ORIGIN
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
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
