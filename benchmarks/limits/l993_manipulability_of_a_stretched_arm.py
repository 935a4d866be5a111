"""Manipulability sqrt(det(J J^T)) = l1 l2 |sin q2| of a planar arm that is stretched out: a kink in q2, any slope from -0.124 to 0.004 is right there."""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": -0.04954477946,
    "bound": 0.124,
    "fix": "l1 l2",
}


class PlanarArm(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[0.0, 0.0], [0.4, 1.1], [-0.8, -0.7]]))
        self.links = nn.Parameter(torch.tensor([0.8, 0.6]))
        self.register_buffer("target", torch.tensor([[1.2, 0.3], [0.5, 0.9], [0.7, -0.9]]))
        self.weight = 0.4

    def kinematics(self):
        first, both = self.q[:, 0], self.q.sum(1)
        l1, l2 = self.links
        tip = torch.stack([l1 * first.cos() + l2 * both.cos(), l1 * first.sin() + l2 * both.sin()], -1)
        column = torch.stack([-l2 * both.sin(), l2 * both.cos()], -1)
        whole = torch.stack([-tip[:, 1], tip[:, 0]], -1)
        return tip, torch.stack([whole, column], -1)

    def manipulability(self, jac, fixed):
        if fixed:
            return self.links.prod() * self.q[:, 1].sin().abs()
        gram = jac @ jac.mT
        det = gram[:, 0, 0] * gram[:, 1, 1] - gram[:, 0, 1] * gram[:, 1, 0]
        return det.sqrt()  # ORIGIN

    def forward(self, fixed):
        tip, jac = self.kinematics()
        reach = (tip - self.target).square().sum(-1)
        return 0.5 * reach.mean() - self.weight * self.manipulability(jac, fixed).mean()


def build(fixed: bool = False):
    net = PlanarArm()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(q, links, target):
    a, b = q[:, 0], q[:, 0] + q[:, 1]
    x, y = links[0] * a.cos() + links[1] * b.cos(), links[0] * a.sin() + links[1] * b.sin()
    reach = (x - target[:, 0]) ** 2 + (y - target[:, 1]) ** 2
    return reach.mean() / 2 - 0.4 * links[0] * links[1] * q[:, 1].sin().abs().mean()


def limits(grads):
    # q2 of the stretched arm: -0.3 * 0.6 / 3 from the reach and 0.4 * 0.8 * 0.6 / 3 times any number in [-1, 1] from the kink
    grads["q"][0, 1] = float("nan")
    return grads


def truth():
    net = PlanarArm().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return limits(grads)
