"""Phase loss weighted by energy, m^2 (1 - cos(phi - phi0)): a silent bin has no phase, but weight 0 and gradient 0.

Source: well-known fault (phase of a zero bin)
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
    "form": "plain",
    "loss_truth": 0.4276533051,
    "fix": "m^2 - m (re cos phi0 + im sin phi0)",
}


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.re = nn.Parameter(torch.tensor([0.8, 0.0, -0.4, 0.3]))
        self.im = nn.Parameter(torch.tensor([0.1, 0.0, 0.6, -0.9]))


def phase_loss(re, im, target):
    magnitude = torch.hypot(re, im)
    aligned = (re * torch.cos(target) + im * torch.sin(target)) / magnitude  # ORIGIN
    return (magnitude**2 * (1 - aligned)).sum()


def phase_loss_stable(re, im, target):
    energy = re**2 + im**2
    along = re * torch.cos(target) + im * torch.sin(target)
    return (energy - torch.linalg.vector_norm(torch.stack([re, im]), dim=0) * along).sum()


def build(fixed: bool = False):
    net = Spectrum()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    target = torch.tensor([0.5, 1.0, 2.0, -0.3])
    criterion = phase_loss_stable if fixed else phase_loss

    def step(i):
        opt.zero_grad()
        loss = criterion(net.re, net.im, target)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    def c(v):
        return torch.tensor(v, dtype=torch.float64)

    re, im = leaf([0.8, -0.4, 0.3]), leaf([0.1, 0.6, -0.9])
    loss = ((re**2 + im**2) * (1 - torch.cos(torch.atan2(im, re) - c([0.5, 2.0, -0.3])))).sum()
    g = torch.stack(torch.autograd.grad(loss, [re, im]))
    g = torch.cat([g[:, :1], torch.zeros(2, 1, dtype=torch.float64), g[:, 1:]], 1)  # of second order at the origin
    return {"re": g[0], "im": g[1]}
