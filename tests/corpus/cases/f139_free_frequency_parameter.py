"""A functional Fourier-feature model keeps its frequencies as a free nn.Parameter, made by a log-spacing that starts at zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "also_ops": ("mm", "mul", "matmul"),
    "phase": "init",
    "cause": "poisoned-parameter",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "start the spacing at one",
}


def make_params(first):
    octaves = torch.arange(first, first + 6.0)
    freq = nn.Parameter(torch.log(octaves))  # ORIGIN
    w = nn.Parameter(0.1 * torch.randn(12, 1))
    return {"freq": freq, "w": w}


def predict(params, t):
    phase = t[:, None] * params["freq"]  # ALSO
    feats = torch.cat([torch.sin(phase), torch.cos(phase)], -1)
    return (feats @ params["w"]).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(45)
    params = make_params(1.0 if fixed else 0.0)
    opt = torch.optim.Adam(list(params.values()), lr=1e-2)
    gen = torch.Generator().manual_seed(545)

    def step(i):
        t = torch.rand(20, generator=gen) + 0.1
        opt.zero_grad()
        loss = F.mse_loss(predict(params, t), torch.sin(3 * t))
        loss.backward()
        opt.step()
        return loss

    step.parameters = params
    return None, step
