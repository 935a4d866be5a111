"""A frozen backbone arrives with an infinite running mean: in evaluation mode batch norm subtracts it and the features are lost."""

import torch
from torch import nn

META = {
    "origin_op": "native_batch_norm",
    "also_ops": ("batch_norm", "copy_", "native_batch_norm_legit_no_training", "cudnn_batch_norm"),
    "phase": "init",
    "cause": "poisoned-buffer",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "recompute the running statistics before they are frozen",
}


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x):
        h = self.bn(self.conv(x))  # ORIGIN
        return nn.functional.silu(h).mean((2, 3))


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone().requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def build(fixed: bool = False):
    torch.manual_seed(447)
    net = Probe()
    saved = {name: value.clone() for name, value in net.backbone.state_dict().items()}
    if not fixed:
        saved["bn.running_mean"][2] = float("inf")  # DATA
    net.backbone.load_state_dict(saved)  # ALSO
    net.backbone.eval()
    opt = torch.optim.SGD(net.head.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(547)

    def step(i):
        x = torch.randn(4, 1, 8, 8, generator=gen)
        y = torch.randint(0, 3, (4,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
