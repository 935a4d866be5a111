"""Manning's formula in three rectangular reaches, one of them dry: area * (area / perimeter) ** (2 / 3) has 0 * inf in its backward; Q goes as depth ** (5 / 3), slope 0."""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided",
    "loss_truth": 3.042352776,
    "fix": "area ** (5 / 3) / perimeter ** (2 / 3)",
}

WIDTH, SLOPE, SEEN = [2.0, 3.0, 1.5], [0.004, 0.01, 0.002], [2.0, 0.3, 3.5]


class Reach(nn.Module):
    def __init__(self, depth, width, slope, fixed):
        super().__init__()
        self.depth = nn.Parameter(torch.tensor(depth))
        self.width, self.slope, self.fixed = width, slope, fixed

    def section(self):
        return self.width * self.depth, self.width + 2 * self.depth

    def forward(self, roughness):
        area, wetted = self.section()
        if self.fixed:
            carried = area ** (5 / 3) / wetted ** (2 / 3)
        else:
            carried = area * (area / wetted) ** (2 / 3)  # ORIGIN
        return carried * self.slope**0.5 / roughness


class River(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.roughness = nn.Parameter(torch.tensor(0.035))
        self.reaches = nn.ModuleList(Reach(h, w, s, fixed) for h, w, s in zip([0.8, 0.0, 1.5], WIDTH, SLOPE))

    def forward(self):
        return torch.stack([reach(self.roughness) for reach in self.reaches])


def build(fixed: bool = False):
    net = River(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-7)
    seen = torch.tensor(SEEN)

    def step(i):
        opt.zero_grad()
        loss = (net() - seen).square().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step


def reference():
    n, loss, rough, out = 0.035, 0.0, 0.0, {}
    for k, (h, w, s, q) in enumerate(zip([0.8, 0.0, 1.5], WIDTH, SLOPE, SEEN)):
        a, p = w * h, w + 2 * h
        flow = s**0.5 / n * a ** (5 / 3) / p ** (2 / 3)
        slope = s**0.5 / n * (5 / 3 * a ** (2 / 3) * w / p ** (2 / 3) - 4 / 3 * a ** (5 / 3) / p ** (5 / 3))
        loss += (flow - q) ** 2
        rough += 2 * (flow - q) * -flow / n
        out[f"reaches.{k}.depth"] = torch.tensor(2 * (flow - q) * slope, dtype=torch.float64)
    out["roughness"] = torch.tensor(rough, dtype=torch.float64)
    return loss, out


def truth():
    return reference()[1]
