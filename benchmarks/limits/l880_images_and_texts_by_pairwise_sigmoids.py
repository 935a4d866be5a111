"""Pairwise sigmoid loss of images and texts, -log(1 / (1 + exp(z (b - t sim)))), with a
temperature of 150: the exponential overflows for a confident wrong pair.

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
    "loss_truth": 129.6574320792,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(3, 2)
        self.text = nn.Linear(3, 2)
        self.log_t = nn.Parameter(torch.tensor(5.0))
        self.b = nn.Parameter(torch.tensor(-10.0))
        with torch.no_grad():
            for layer in (self.image, self.text):
                layer.weight.copy_(torch.tensor([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]]))
                layer.bias.zero_()

    def forward(self, fixed):
        images = torch.tensor([[0.5, -0.2, 0.9], [1.0, 0.3, -0.4]])
        texts = torch.tensor([[0.8, 0.1, -0.6], [-0.3, 0.6, 0.2]])
        u = nn.functional.normalize(self.image(images), dim=1)
        v = nn.functional.normalize(self.text(texts), dim=1)
        labels = 2 * torch.eye(2) - 1
        logits = u @ v.t() * torch.exp(self.log_t) + self.b
        if fixed:
            return -nn.functional.logsigmoid(labels * logits).sum() / 2
        p = 1 / (1 + torch.exp(-labels * logits))
        return -torch.log(p).sum() / 2  # ORIGIN


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
    return {name: p.grad for name, p in net.named_parameters()}
