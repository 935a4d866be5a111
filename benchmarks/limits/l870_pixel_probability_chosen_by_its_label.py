"""Focal loss of a segmentation, p_t = where(y, p, 1 - p) of a sigmoid, -(1 - p_t)^2 log(p_t): two
pixels are wrong and sure.

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
    "loss_truth": 17.2772009802,
}


def focal(logits, target, gamma=2.0):
    p = torch.sigmoid(logits)
    p_t = torch.where(target == 1, p, 1 - p)
    return (-((1 - p_t) ** gamma) * torch.log(p_t)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(1, 2, 3, padding=1)
        self.classifier = nn.Conv2d(2, 1, 1)

    def forward(self, fixed):
        image = torch.linspace(-4.0, 9.0, 16).view(1, 1, 4, 4)
        target = (torch.arange(16).view(1, 1, 4, 4) % 3 == 0).to(image.dtype)
        logits = self.classifier(torch.relu(self.features(image)))
        if fixed:
            log_p = torch.where(
                target == 1,
                nn.functional.logsigmoid(logits),
                nn.functional.logsigmoid(-logits),
            )
            wrong = torch.where(target == 1, torch.sigmoid(-logits), torch.sigmoid(logits))
            return (-(wrong**2.0) * log_p).mean()
        return focal(logits, target)


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(3 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
