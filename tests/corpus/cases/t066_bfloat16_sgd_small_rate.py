"""Fine-tuning in bfloat16 with SGD and a small rate: every update is below half an ulp of its weight, nothing moves."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "add_",
    "also_ops": ("_foreach_add_", "sub_", "addcdiv_"),
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 4,
    "watch": "update:body.weight",
    "fix": "keep the master weights in float32",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 24, bias=False)
        self.head = nn.Linear(24, 1, bias=False)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.sign(p) * (0.5 + p.abs()))

    def forward(self, x):
        return self.head(torch.tanh(self.body(x))).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(36)
    net = Net()
    if not fixed:
        net = net.to(torch.bfloat16)
    gen = torch.Generator().manual_seed(536)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        pred = net(x.to(net.head.weight.dtype)).float()
        loss = F.mse_loss(pred, x[:, 0])
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads, strict=True):
                p.grad = g
                p.add_(g, alpha=-1e-5)  # ORIGIN
        return loss

    return net, step
