"""An optimizer that estimates its step size as in D-adaptation divides by the sum of gradients, zero in a first step without labels."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("reciprocal",),
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero", "learning-rate"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "leave the estimate as it is while the sum is zero",
    "twin_rests": (0,),
}


class Adaptive(torch.optim.Optimizer):
    """SGD whose step size grows with the estimate of the distance to the solution."""

    def __init__(self, params, guarded):
        super().__init__(params, {"d0": 1e-2})
        self.guarded = guarded

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        numerator, total = torch.zeros(()), torch.zeros(())
        for p in group["params"]:
            s = self.state[p].setdefault("s", torch.zeros_like(p))
            numerator += (p.grad * s).sum()
            s.add_(p.grad)
            total += s.abs().sum()
        if not self.guarded or total > 0:
            group["d0"] = torch.maximum(torch.as_tensor(group["d0"]), numerator / total)  # ORIGIN
        for p in group["params"]:
            p.sub_(group["d0"] * p.grad)


def build(fixed: bool = False):
    torch.manual_seed(469)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = Adaptive(net.parameters(), fixed)
    gen = torch.Generator().manual_seed(569)

    def step(i):
        x = torch.randn(20, 6, generator=gen)
        labelled = torch.ones(20, 1) if i > 0 else torch.zeros(20, 1)
        opt.zero_grad()
        loss = ((net(x) - x[:, :1]).square() * labelled).sum() / labelled.sum().clamp_min(1.0)
        loss.backward()
        opt.step()
        return loss

    return net, step
