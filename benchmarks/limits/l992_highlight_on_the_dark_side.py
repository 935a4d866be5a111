"""Phong highlights exp(m log(n.h)) chosen by torch.where: on the dark side n.h is clamped to 0, whose logarithm meets a gradient of 0."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.02015715758,
    "fix": "a cosine of 1 under the logarithm on the dark side",
}


SHIFT = 0.0


def near(h):
    global SHIFT
    SHIFT = abs(h) ** 4


class PhongFit(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_shine = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.specular = nn.Parameter(torch.tensor([0.6, 0.9]))
        self.register_buffer("normals", torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.6, 0.8], [0.8, 0.0, -0.6]]))
        self.register_buffer("halfway", torch.tensor([0.0, 0.28, 0.96]))
        self.register_buffer("pixels", torch.tensor([[0.5, 0.4, 0.05], [0.6, 0.7, 0.0]]))

    def highlight(self, fixed):
        cosine = (self.normals @ self.halfway).clamp(min=0.0)
        front = cosine > 0
        base = torch.where(front, cosine, torch.ones_like(cosine)) if fixed else cosine + SHIFT * ~front
        power = self.log_shine.exp()[:, None] * torch.log(base)  # ORIGIN
        lobe = torch.exp(power)
        return torch.where(front, lobe, torch.zeros_like(lobe))

    def forward(self, fixed):
        image = self.specular[:, None] * self.highlight(fixed)
        return (image - self.pixels).square().sum(-1).mean()


def build(fixed: bool = False):
    net = PhongFit()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(log_shine, specular, normals, halfway, pixels):
    loss = (pixels[:, 2] ** 2).sum()  # the dark one: no light whatever the parameters are
    for i in (0, 1):
        cosine = torch.dot(normals[i], halfway)
        loss = loss + ((specular * cosine ** log_shine.exp() - pixels[:, i]) ** 2).sum()
    return loss / 2


def truth():
    net = PhongFit().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
