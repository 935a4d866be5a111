"""Knowledge distillation at temperature 2: softmax of both networks' logits, then p (log p - log
q).

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 128.7466132,
}


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 3)
        with torch.no_grad():
            self.out.weight.copy_(torch.tensor([[80.0, 10.0], [-90.0, 5.0], [1.0, -2.0]]))
            self.out.bias.zero_()

    def forward(self, x, T):
        return torch.softmax(self.out(x) / T, dim=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Student()

    def forward(self, fixed):
        x = torch.tensor([[2.0, 1.0], [0.1, 0.2]])
        p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]])
        T = 2.0
        if fixed:
            logq = torch.log_softmax(self.student.out(x) / T, 1)
            return (p * (p.log() - logq)).sum(1).mean() * T**2
        q = self.student(x, T)
        return (p * (p.log() - q.log())).sum(1).mean() * T**2  # ORIGIN


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
