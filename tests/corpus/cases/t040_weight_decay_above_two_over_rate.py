"""Weight decay 60 with rate 0.1: each step multiplies the weights by about minus five, whatever the loss says."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("add",),
    "phase": "optimizer",
    "cause": "learning-rate",
    "symptom": "loss-inf",
    "first_bad_step": 27,
    "n_steps": 40,
    "oracle": "drift",
    "fix": "weight decay 6e-4",
}


class Linear2(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(10, 6)
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return torch.tanh(self.body(x)) * self.gain


def build(fixed: bool = False):
    torch.manual_seed(440)
    net = Linear2()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=6e-4 if fixed else 60.0)
    gen = torch.Generator().manual_seed(540)

    def step(i):
        x = torch.randn(16, 10, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :6].tanh())  # FIRST
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()  # ORIGIN
        return loss

    return net, step
