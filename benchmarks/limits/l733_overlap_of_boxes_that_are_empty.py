"""Mean intersection over union of the boxes that are marked; an unmarked padding pair has no area
at all.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.4506662691,
}


def box_iou(a, b):
    lo = torch.max(a[:, :2], b[:, :2])
    hi = torch.min(a[:, 2:], b[:, 2:])
    inter = (hi - lo).clamp(min=0).prod(1)
    area = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1)
    return inter / (area - inter)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Parameter(torch.tensor(0.1))

    def forward(self, fixed):
        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 4.0, 3.0]])
        target = torch.tensor([[0.5, 0.2, 2.5, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.5, 3.0, 3.0]])
        marked = torch.tensor([True, False, True])
        moved = torch.cat([boxes[:, :2] * self.scale, boxes[:, 2:] * self.scale], 1)
        moved = torch.where(marked[:, None], moved + self.shift, moved)
        if fixed:
            return 1 - box_iou(moved[marked], target[marked]).mean()
        iou = box_iou(moved, target)
        return 1 - torch.where(marked, iou, torch.zeros_like(iou)).sum() / marked.sum()


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
