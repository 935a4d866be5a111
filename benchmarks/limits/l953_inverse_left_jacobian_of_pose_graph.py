"""Residuals of a pose graph with the inverse left Jacobian, 1 / t^2 - (1 + cos t) / (2 t sin t), of a rotation that is still the identity: 1/12."""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.182247057,
    "fix": "the series 1/12 + t^2 / 720 near 0",
}


class PoseGraph(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotvec = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [0.4, -0.3, 0.6], [-0.2, 0.9, 0.1]]))
        self.shift = nn.Parameter(torch.tensor([[1.0, 0.5, -0.3], [0.2, -0.7, 0.4], [0.6, 0.1, 0.8]]))
        self.register_buffer("measured", torch.tensor([[0.8, 0.6, -0.1], [0.1, -0.5, 0.6], [0.9, 0.2, 0.5]]))
        self.register_buffer("information", torch.tensor([4.0, 1.0, 0.5]))

    def coefficient(self, fixed):
        theta2 = self.rotvec.square().sum(-1, keepdim=True)
        if fixed:
            near = theta2 < 1e-3
            safe = torch.where(near, torch.ones_like(theta2), theta2)
            angle = safe.sqrt()
            closed = 1 / safe - (1 + torch.cos(angle)) / (2 * angle * torch.sin(angle))
            return torch.where(near, 1 / 12 + theta2 / 720, closed)
        theta = theta2.sqrt()
        half_cot = (1 + torch.cos(theta)) / (2 * theta * torch.sin(theta))  # ORIGIN
        return 1 / theta2 - half_cot

    def twist(self, fixed):
        once = torch.linalg.cross(self.rotvec, self.shift)
        twice = torch.linalg.cross(self.rotvec, once)
        return self.shift - 0.5 * once + self.coefficient(fixed) * twice

    def forward(self, fixed):
        residual = self.twist(fixed) - self.measured
        return 0.5 * torch.einsum("ij,j->", residual.square(), self.information)


def build(fixed: bool = False):
    net = PoseGraph()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(rotvec, shift, measured, information):
    s = rotvec.square().sum(-1, keepdim=True)
    bernoulli = [1 / 6, 1 / 30, 1 / 42, 1 / 30, 5 / 66, 691 / 2730, 7 / 6, 3617 / 510, 43867 / 798, 174611 / 330]  # |B_2k|, from t cot t
    c = sum(b / math.gamma(1 + 2 * k) * s ** (k - 1) for k, b in enumerate(bernoulli, 1))
    once = torch.linalg.cross(rotvec, shift)
    r = shift - once / 2 + c * torch.linalg.cross(rotvec, once) - measured
    return 0.5 * (r * r * information).sum()


def truth():
    net = PoseGraph().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
