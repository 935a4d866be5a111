"""Loss -log(IoU) of matched boxes: unmatched pairs do not overlap, and are multiplied by 0.

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
    "kind": "masked",
    "loss_truth": 0.351649776,
}


def iou(a, b):
    left = torch.maximum(a[:, 0], b[:, 0])
    right = torch.minimum(a[:, 1], b[:, 1])
    inter = (right - left).clamp(min=0)
    union = (a[:, 1] - a[:, 0]) + (b[:, 1] - b[:, 0]) - inter
    return inter / union


def iou_loss(pred, target, matched):
    loss = -torch.log(iou(pred, target))  # ORIGIN
    return (loss * matched).sum() / matched.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.boxes = nn.Parameter(torch.tensor([[0.1, 0.9], [0.0, 0.3], [0.5, 1.5]]))

    def forward(self, fixed):
        target = torch.tensor([[0.2, 1.0], [0.6, 0.9], [0.4, 1.2]])
        matched = torch.tensor([1.0, 0.0, 1.0])
        if fixed:
            keep = matched > 0
            return -torch.log(iou(self.boxes[keep], target[keep])).mean()
        return iou_loss(self.boxes, target, matched)


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
