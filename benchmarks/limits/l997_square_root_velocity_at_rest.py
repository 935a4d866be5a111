"""Elastic registration of curves by their square-root velocity v / sqrt(|v|), where one curve stands still: 0, with an infinite slope."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.08129894992,
    "fix": "v / sqrt(",
}


class ElasticRegistration(nn.Module):
    def __init__(self):
        super().__init__()
        self.curve = nn.Parameter(torch.tensor([[0.0, 0.5, 0.5, 1.5], [1.0, 0.4, 0.9, 0.2]]))
        self.scale = nn.Parameter(torch.tensor([1.0, 0.8]))
        self.register_buffer("template", torch.tensor([[0.6, 0.3, 1.1], [-0.7, 0.8, -0.9]]))

    def velocity_root(self, fixed):
        speed = torch.diff(self.curve, dim=-1) * self.scale[:, None]
        if fixed:
            return speed / torch.sqrt(speed.abs() + 1e-6)
        return speed / speed.abs().sqrt()  # ORIGIN

    def forward(self, fixed):
        return (self.velocity_root(fixed) - self.template).square().sum(-1).mean()


def build(fixed: bool = False):
    net = ElasticRegistration()
    opt = torch.optim.SGD(net.parameters(), lr=1e-7)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(curve, scale, template):
    loss = (template[0, 1] ** 2) / 2  # the root of no velocity
    for c, t in ((0, 0), (0, 2), (1, 0), (1, 1), (1, 2)):
        v = (curve[c, t + 1] - curve[c, t]) * scale[c]
        loss = loss + (v.sign() * v.abs() ** 0.5 - template[c, t]) ** 2 / 2
    return loss


def limits(grads):
    # d loss / d root = -0.3 and d root / d v = +inf at v = curve[0, 2] - curve[0, 1]; by the scale v = 0 does not move
    grads["curve"][0, 1], grads["curve"][0, 2] = float("inf"), -float("inf")
    return grads


def truth():
    net = ElasticRegistration().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return limits(grads)
