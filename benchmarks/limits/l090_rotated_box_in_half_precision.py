"""KLD loss of small oriented boxes as Gaussians in float16: the determinant of a covariance of 0.01 x 0.006 is 2e-10 and underflows to 0.

Source: rotated object detection with the Kullback-Leibler loss, boxes normalised to the image, mixed precision
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 3,
    "kind": "overflow",
    "loss_truth": 0.1358709987,
    "fix": "float32, with the determinant as (w h / 4)^2",
}

BOXES = [[0.50, 0.48, 0.30, 0.22, 0.10], [0.310, 0.620, 0.0100, 0.0060, 0.40], [0.20, 0.25, 0.40, 0.15, -0.30]]
TRUTH = [[0.52, 0.47, 0.34, 0.20, 0.20], [0.312, 0.621, 0.0120, 0.0050, 0.25], [0.23, 0.22, 0.36, 0.18, -0.10]]
BATCHES = [[0, 2], [1, 2]]


def axes(angle):
    c, s = torch.cos(angle), torch.sin(angle)
    return torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)


def covariance(box):
    r = axes(box[:, 4])
    return torch.einsum("nij,nj,nkj->nik", r, (box[:, 2:4] / 2) ** 2, r)


class KLD(nn.Module):
    """runs in the precision of the network's head"""

    def inverse(self, sigma):
        det = sigma[:, 0, 0] * sigma[:, 1, 1] - sigma[:, 0, 1] * sigma[:, 1, 0]
        adjugate = torch.stack([sigma[:, 1, 1], -sigma[:, 0, 1], -sigma[:, 1, 0], sigma[:, 0, 0]], -1).view(-1, 2, 2)
        return adjugate / det[:, None, None], det  # ORIGIN

    def forward(self, pred, goal):
        pred, goal = pred.half(), goal.half()
        sp, st = covariance(pred), covariance(goal)
        inv, det_t = self.inverse(st)
        _, det_p = self.inverse(sp)
        shift = goal[:, :2] - pred[:, :2]
        far = torch.einsum("ni,nij,nj->n", shift, inv, shift)
        return 0.5 * (far + torch.einsum("nij,nji->n", inv, sp) + torch.log(det_t / det_p) - 2)


class WideKLD(nn.Module):
    def forward(self, pred, goal):
        r = axes(goal[:, 4])
        inv = torch.einsum("nij,nj,nkj->nik", r, 4 / goal[:, 2:4] ** 2, r)
        shift = goal[:, :2] - pred[:, :2]
        far = torch.einsum("ni,nij,nj->n", shift, inv, shift)
        size = torch.log(goal[:, 2:4]).sum(1) - torch.log(pred[:, 2:4]).sum(1)
        return 0.5 * (far + torch.einsum("nij,nji->n", inv, covariance(pred)) + 2 * size - 2)


class Head(nn.Module):
    def __init__(self, criterion):
        super().__init__()
        self.box = nn.Parameter(torch.tensor(BOXES))
        self.criterion = criterion

    def forward(self, index, goal):
        return (1 - 1 / (1 + torch.log1p(self.criterion(self.box[index], goal)))).float().mean()


def build(fixed: bool = False):
    net = Head(WideKLD() if fixed else KLD())
    opt = torch.optim.SGD(net.parameters(), lr=1e-7)

    def step(i):
        index = torch.tensor(BATCHES[i % 2])
        opt.zero_grad()
        loss = net(index, torch.tensor(TRUTH)[index])
        loss.backward()
        opt.step()
        return loss

    return net, step


def analysis():
    """in the frame of the true box, where its covariance is diagonal"""
    box = torch.tensor(BOXES, dtype=torch.float64, requires_grad=True)
    goal = torch.tensor(TRUTH, dtype=torch.float64)
    for i in range(2):
        p, t = box[BATCHES[i]], goal[BATCHES[i]]
        dx, dy, turn = p[:, 0] - t[:, 0], p[:, 1] - t[:, 1], p[:, 4] - t[:, 4]
        along = dx * torch.cos(t[:, 4]) + dy * torch.sin(t[:, 4])
        across = dy * torch.cos(t[:, 4]) - dx * torch.sin(t[:, 4])
        c, s = torch.cos(turn) ** 2, torch.sin(turn) ** 2
        w, h = p[:, 2] ** 2, p[:, 3] ** 2
        a, b = t[:, 2] ** 2, t[:, 3] ** 2
        d = 2 * (along**2 / a + across**2 / b) + 0.5 * ((w * c + h * s) / a + (w * s + h * c) / b) + 0.5 * torch.log(a * b / (w * h)) - 1
        loss = (1 - 1 / (1 + torch.log1p(d))).mean()
        (g,) = torch.autograd.grad(loss, box)
        if i == 0:
            box = (box - 1e-7 * g).detach().requires_grad_()
    return loss.detach(), {"box": g}


def truth():
    return analysis()[1]
