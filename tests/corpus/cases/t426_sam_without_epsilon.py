"""Sharpness-aware minimisation, two backwards to a step: the ascent is rho / norm, and a batch whose hinge is zero has norm zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("reciprocal", "mul"),
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero", "norm-at-zero", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "twin_rests": (4,),
    "fix": "rho / (norm + 1e-12)",
}


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho, eps, **kw):
        super().__init__(params, {"rho": rho, "eps": eps, **kw})
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad for g in self.param_groups for p in g["params"]]
        norm = torch.stack([g.norm() for g in grads]).norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + group["eps"])  # ORIGIN
            for p in group["params"]:
                e = p.grad * scale  # ALSO
                p.add_(e)
                self.state[p]["e"] = e

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["e"])
        self.base.step()


def build(fixed: bool = False):
    torch.manual_seed(441)
    net = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 1))
    opt = SAM(net.parameters(), torch.optim.SGD, rho=0.05, eps=1e-12 if fixed else 0.0, lr=0.05)
    gen = torch.Generator().manual_seed(442)

    def step(i):
        x = torch.randn(8, 3, generator=gen)
        y = torch.sign(x[:, 0])
        if i == 4:
            y = torch.sign(net(x * 200).detach().squeeze(-1))  # every sample is right by a wide margin
            x = x * 200
        for ascend in (True, False):
            loss = torch.relu(1 - y * net(x).squeeze(-1)).mean()
            opt.zero_grad()
            loss.backward()
            if ascend:
                opt.first_step()  # ALSO
            else:
                opt.second_step()
        return loss

    return net, step
