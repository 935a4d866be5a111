"""Temperature scaling of a probability, logit = log(p / (1 - p)), where the network gave exactly
1.

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
    "loss_truth": 0.3132590655,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(2, 1)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        with torch.no_grad():
            self.score.weight.copy_(torch.tensor([[6.0, -2.0]]))
            self.score.bias.zero_()

    def predict(self, x):
        return torch.sigmoid(self.score(x)).squeeze(-1)

    def forward(self, fixed):
        x = torch.tensor([[5.0, 1.0], [0.2, 0.4], [0.1, 0.9]])
        y = torch.tensor([1.0, 1.0, 0.0])
        if fixed:
            logit = self.score(x).squeeze(-1)
        else:
            p = self.predict(x)
            logit = torch.log(p / (1 - p))  # ORIGIN
        return F.binary_cross_entropy_with_logits(logit / self.temperature, y)


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
