"""A spectrum is fitted by a sinc window and a slope of logarithms, each in a function of its own that is given the same frequencies; in the second batch one is 0.

Source: what one function binds anew, others read as it was
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-over-zero",
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 3,
    "kind": "removable",
    "loss_truth": 4.1064907613,
    "fix": "torch.sinc in the window, the series of log1p(t) / t in the slope",
}


def window(t):
    return torch.sin(t) / t  # ORIGIN


def slope(t):
    return torch.log1p(t) / t  # ORIGIN


def right_window(t):
    return torch.sinc(t / torch.pi)


def right_slope(t):
    near = t.abs() < 1e-2
    t_ = torch.where(near, 1.0, t)
    return torch.where(near, 1 - t / 2 + t**2 / 3 - t**3 / 4, torch.log1p(t_) / t_)


class Fit(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts
        self.shift = nn.Parameter(torch.tensor([0.25, 0.0, 0.5]))

    def forward(self, x):
        t = x + self.shift
        window, slope = self.parts
        return window(t).sum() + 0.5 * slope(t).sum()


FIRST, SECOND = [0.5, 0.25, 0.125], [0.5, 0.0, 0.125]


def build(fixed: bool = False):
    net = Fit((right_window, right_slope) if fixed else (window, slope))
    opt = torch.optim.SGD(net.parameters(), lr=0.0)

    def step(i):
        opt.zero_grad()
        loss = net(torch.tensor(SECOND if i == 1 else FIRST))
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    """quotient rule away from 0, Taylor coefficients at 0"""
    t = torch.tensor([0.75, 0.0, 0.625], dtype=torch.float64)
    s = torch.where(t == 0, 1.0, t)
    d_window = torch.where(t == 0, 0.0, (s * s.cos() - s.sin()) / s**2)
    d_slope = torch.where(t == 0, -0.5, (s / (1 + s) - s.log1p()) / s**2)
    return {"shift": d_window + 0.5 * d_slope}
