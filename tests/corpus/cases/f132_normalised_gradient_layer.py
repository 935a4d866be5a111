"""A domain-adversarial layer reverses the gradient and divides it by its norm; when the critic is undecided the gradient is zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "also_ops": ("ReverseUnit", "ReverseUnitBackward", "_ReverseUnit"),
    "phase": "backward",
    "cause": "custom-backward",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add 1e-12 to the norm in backward",
}


class ReverseUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.eps = eps
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        size = grad.pow(2).sum().sqrt()
        return -grad / (size + ctx.eps), None  # ALSO


class Dann(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.feat = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.label, self.domain = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, x):
        h = self.feat(x)
        rev = ReverseUnit.apply(h, self.eps)  # ORIGIN
        return self.label(h), self.domain(rev).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(229)
    net = Dann(1e-12 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(729)

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 5, generator=gen)
        y, dom = (x[:, 0] > 0).long(), (x[:, 1] > 0).float()
        label, domain = net(x)
        critic = F.binary_cross_entropy_with_logits(domain, dom)
        weight = 0.0 if i == 2 else 0.1  # the schedule rests
        loss = F.cross_entropy(label, y) + weight * critic
        loss.backward()
        opt.step()
        return loss

    return net, step
