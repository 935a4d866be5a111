"""Signed distance of a torus, | (|p_xy| - R, p_z) | - r, at a sample on the axis: the direction in the plane has no limit, the rest has."""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "norm-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.01425565833,
    "bound": 0.122,
    "fix": "torch.linalg.vector_norm, whose gradient at 0 is 0",
}


class TorusFit(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.tensor([[0.5, -0.5, 0.25], [0.1, 0.2, -0.3]]))
        self.radii = nn.Parameter(torch.tensor([1.2, 0.4]))
        self.register_buffer("samples", torch.tensor([[[0.5, -0.5, 1.0], [1.8, 0.3, 0.5]], [[1.0, -0.9, 0.2], [-1.3, 0.6, -0.6]]]))
        self.register_buffer("distance", torch.tensor([[0.8, 0.1], [0.2, 0.0]]))

    def sdf(self, fixed):
        local = self.samples - self.centre[:, None]
        if fixed:
            planar = torch.linalg.vector_norm(local[..., :2], dim=-1)
        else:
            planar = local[..., :2].square().sum(-1).sqrt()  # ORIGIN
        ring = planar - self.radii[0]
        return torch.sqrt(ring**2 + local[..., 2] ** 2) - self.radii[1]

    def forward(self, fixed):
        return F.mse_loss(self.sdf(fixed), self.distance)


def build(fixed: bool = False):
    net = TorusFit()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(centre, radii, samples, distance):
    loss = 0.0
    for b in range(2):
        for s in range(2):
            x, y, z = samples[b, s] - centre[b]
            planar = 0.0 if (b, s) == (0, 0) else (x * x + y * y) ** 0.5
            sdf = ((planar - radii[0]) ** 2 + z * z) ** 0.5 - radii[1]
            loss = loss + (sdf - distance[b, s]) ** 2
    return loss / 4


def limits(grads):
    # 0.0912 times a unit vector from the first sample, (0.0301, 0.0185) from the second
    grads["centre"][0, :2] = float("nan")
    return grads


def truth():
    net = TorusFit().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return limits(grads)
