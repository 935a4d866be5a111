"""Training resumes from a checkpoint whose weights were cleaned by hand; Adam's second moment still holds a NaN."""

import torch
from torch import nn

META = {
    "origin_op": "_foreach_mul_",
    "also_ops": (
        "mul_",
        "sqrt",
        "div_",
        "addcdiv_",
        "addcmul_",
        "lerp_",
        "_foreach_addcdiv_",
        "_foreach_sqrt",
        "clone",
        "copy_",
    ),
    "phase": "init",
    "also_phase": "optimizer",
    "cause": "poisoned-parameter",
    "also_causes": ("poisoned-buffer",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "restore the weights only, with a fresh optimizer",
}


def checkpoint(net):
    """What the aborted run had written."""
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    net(torch.ones(2, 6)).sum().backward()
    opt.step()
    opt.zero_grad()
    state = opt.state_dict()
    state["state"][0]["exp_avg_sq"][1, 2] = float("nan")  # DATA
    return state


def build(fixed: bool = False):
    torch.manual_seed(628)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2))
    saved = checkpoint(net)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    if not fixed:
        opt.load_state_dict(saved)  # ALSO
    gen = torch.Generator().manual_seed(728)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = (x.sum(1) > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
