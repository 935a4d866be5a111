"""Direction of tracked objects by the arc cosine of v_x / |v|, replaced by 0 with where for an
object at rest.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.2113083449,
}


def yaw(v):
    speed = torch.linalg.vector_norm(v, dim=-1)
    angle = torch.acos(v[:, 0] / speed)  # ORIGIN
    return torch.where(speed > 0, angle, torch.zeros_like(angle))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.5], [-0.3, 0.8]]))

    def forward(self, fixed):
        y = torch.tensor([0.0, 0.3, 1.5])
        if fixed:
            return (yaw(self.v[1:]) - y[1:]).pow(2).sum()
        return (yaw(self.v) - y).pow(2).sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
