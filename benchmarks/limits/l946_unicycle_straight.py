"""Constant turn rate motion model, three steps: v / w (sin(h + w dt) - sin h) with a step that goes straight, w = 0.

Source: well-known fault (CTRV model with no turn)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.7846692094,
    "fix": "sinc(w dt / 2) times cosine and sine of the middle heading",
}


DT = 0.5


class Trajectory(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.tensor([0.6, 0.0, -0.8]))
        self.speed = nn.Parameter(torch.tensor(2.0))

    def end(self, fixed):
        x = y = torch.zeros(())
        heading = torch.tensor(0.3)
        for w in self.turn:
            new = heading + w * DT
            if fixed:
                half = w * DT / 2
                run = self.speed * DT * torch.sinc(half / torch.pi)
                x, y = x + run * torch.cos(heading + half), y + run * torch.sin(heading + half)
            else:
                radius = self.speed / w  # ORIGIN
                x = x + radius * (torch.sin(new) - torch.sin(heading))
                y = y + radius * (torch.cos(heading) - torch.cos(new))
            heading = new
        return torch.stack([x, y])

    def forward(self, fixed):
        return (self.end(fixed) - torch.tensor([2.0, 2.0]).to(self.turn)).pow(2).sum()


def build(fixed: bool = False):
    net = Trajectory()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    turn = torch.tensor([0.6, 0.0, -0.8], dtype=torch.float64, requires_grad=True)
    speed = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    x = y = torch.zeros((), dtype=torch.float64)
    heading = torch.tensor(0.3, dtype=torch.float64)
    for w in turn:  # sin(h + 2a) - sin h = 2 sin(a) cos(h + a)
        a = w * DT / 2
        chord = 1 - a**2 / 6 + a**4 / 120 - a**6 / 5040 + a**8 / 362880 - a**10 / 39916800
        x = x + speed * DT * chord * torch.cos(heading + a)
        y = y + speed * DT * chord * torch.sin(heading + a)
        heading = heading + w * DT
    gt, gs = torch.autograd.grad((x - 2.0) ** 2 + (y - 2.0) ** 2, (turn, speed))
    return {"turn": gt, "speed": gs}
