"""Transfer learning with frozen batch norm whose stored running variance holds a NaN: every image is poisoned in that channel."""

import torch
from torch import nn

META = {
    "origin_op": "native_batch_norm",
    "also_ops": ("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "copy_", "fill_"),
    "phase": "init",
    "cause": "poisoned-buffer",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "re-estimate the running statistics",
}


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h))).mean((2, 3))  # ORIGIN


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(8, 3)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def build(fixed: bool = False):
    torch.manual_seed(68)
    net = Classifier().train()
    if not fixed:
        net.backbone.bn2.running_var[3] = float("nan")  # DATA
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(168)

    def step(i):
        x = torch.randn(6, 1, 9, 9, generator=gen)
        y = torch.randint(0, 3, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
