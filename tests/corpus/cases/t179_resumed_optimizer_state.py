"""Weights are rolled back to a good checkpoint, the optimizer's state is the one of the crash: its first moment holds a NaN."""
import copy

import torch
from torch import nn

META = {
    "origin_op": "_foreach_addcdiv_",
    "also_ops": ("addcdiv_", "_foreach_lerp_", "lerp_", "copy_", "_foreach_add_", "_foreach_mul_", "mul_", "add_", "step"),
    "phase": "init",
    "also_phase": "optimizer",
    "cause": "poisoned-parameter",
    "also_causes": ("poisoned-buffer", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 5,
    "fix": "load the optimizer of the same checkpoint",
}


def make(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    return net, torch.optim.Adam(net.parameters(), lr=1e-3)


def crashed_run(fixed):
    """State dicts as an earlier job left them."""
    net, opt = make(78)
    for p in net.parameters():
        p.grad = torch.ones_like(p) * 0.01
    opt.step()
    good = copy.deepcopy(net.state_dict())
    state = copy.deepcopy(opt.state_dict())
    if not fixed:
        state["state"][2]["exp_avg"][0, 3] = float("nan")  # DATA
    return {"model": good, "optimizer": state}


def build(fixed: bool = False):
    checkpoint = crashed_run(fixed)
    net, opt = make(79)
    net.load_state_dict(checkpoint["model"])
    opt.load_state_dict(checkpoint["optimizer"])  # DATA
    gen = torch.Generator().manual_seed(80)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = (x[:, 0] > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
