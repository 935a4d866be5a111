"""Cross entropy and Dice of a convolution's classes, whose softmax underflows at pixels of another class.

Source: well-known fault
"""
import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "kind": "overflow",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 124.418116,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        with torch.no_grad():
            self.conv.weight.copy_(torch.linspace(-1, 1, 27).view(3, 1, 3, 3).sin())
            self.conv.bias.copy_(torch.tensor([0.1, -0.2, 0.3]))
        self.register_buffer("image", 60 * torch.linspace(-3, 3, 50).view(2, 1, 5, 5).cos())
        self.register_buffer("classes", torch.arange(50).view(2, 5, 5) * 7 % 3)

    def forward(self, fixed):
        logits = self.conv(self.image)
        p = F.softmax(logits, dim=1)
        target = F.one_hot(self.classes, 3).permute(0, 3, 1, 2).to(p.dtype)
        if fixed:
            loss = -(target * F.log_softmax(logits, dim=1)).sum(1).mean()
        else:
            loss = -(target * torch.log(p)).sum(1).mean()  # ORIGIN
        overlap = (p * target).sum((2, 3))
        return loss + 1 - (2 * overlap / (p.sum((2, 3)) + target.sum((2, 3)))).mean()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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
    return {n: p.grad for n, p in net.named_parameters()}
