"""The output bias starts at the log of the class frequencies, and one class does not occur in the training split."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("addmm", "linear", "copy_"),
    "phase": "init",
    "cause": "log-of-zero",
    "also_causes": ("poisoned-parameter",),
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "add one to every count",
}


class Classifier(nn.Module):
    def __init__(self, frequency):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.head = nn.Linear(24, len(frequency))
        with torch.no_grad():
            self.head.bias.copy_(torch.log(frequency))  # ORIGIN

    def forward(self, x):
        return self.head(self.body(x))  # ALSO


def build(fixed: bool = False):
    torch.manual_seed(69)
    gen = torch.Generator().manual_seed(169)
    labels = torch.randint(0, 4, (200,), generator=gen)  # the classes are 0 to 4
    counts = torch.bincount(labels, minlength=5).float() + (1.0 if fixed else 0.0)
    net = Classifier(counts / counts.sum())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)

    def step(i):
        x = torch.randn(16, 5, generator=gen)
        y = torch.arange(16) % 5
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
