"""AdaBelief measures the surprise (g - m)^2; an unused embedding row has none, and without epsilon its update is 0 / 0."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "addcdiv_",
    "also_ops": ("div",),
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "add 1e-8 to the root",
}


class AdaBelief(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, eps=0.0):
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["s"] = torch.zeros_like(p), torch.zeros_like(p)
                m, s = state["m"], state["s"]
                m.lerp_(p.grad, 0.1)
                surprise = p.grad - m
                s.mul_(0.99).addcmul_(surprise, surprise, value=0.01)
                p.addcdiv_(m, s.sqrt().add_(group["eps"]), value=-group["lr"])  # ORIGIN


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, ids):
        return self.out(self.emb(ids).mean(1))


def build(fixed: bool = False):
    torch.manual_seed(44)
    net = Bag()
    opt = AdaBelief(net.parameters(), eps=1e-8 if fixed else 0.0)
    gen = torch.Generator().manual_seed(544)

    def step(i):
        ids = torch.randint(0, 20, (8, 4), generator=gen)
        opt.zero_grad()
        loss = F.cross_entropy(net(ids), ids[:, 0] % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
