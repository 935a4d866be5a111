"""A detector averages its box loss over positive anchors; an image crop without any object has none."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "smooth_l1_loss",
    "also_ops": ("mean",),
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "sum and divide by max(number of positives, 1)",
}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.box, self.cls = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)

    def forward(self, img):
        h = self.stem(img)
        return self.box(h).permute(0, 2, 3, 1).flatten(0, 2), self.cls(h).flatten()


def build(fixed: bool = False):
    torch.manual_seed(223)
    net = Head()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    gen = torch.Generator().manual_seed(723)

    def step(i):
        opt.zero_grad()
        img = torch.rand(1, 3, 8, 8, generator=gen)
        positive = torch.rand(64, generator=gen) < (0.2 if i != 2 else 0.0)
        target = torch.rand(64, 4, generator=gen)
        box, logit = net(img)
        objectness = F.binary_cross_entropy_with_logits(logit, positive.float())
        if fixed:
            regression = F.smooth_l1_loss(box[positive], target[positive], reduction="sum") / positive.sum().clamp(
                min=1
            )
        else:
            regression = F.smooth_l1_loss(box[positive], target[positive])  # ORIGIN
        loss = objectness + 2.0 * regression
        loss.backward()
        opt.step()
        return loss

    return net, step
