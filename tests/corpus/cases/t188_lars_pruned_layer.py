"""LARS by hand: a layer that magnitude pruning emptied has no weight norm and no gradient norm; its local rate is 0 / 0."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "a local rate of one where either norm is zero",
}


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, wd=1e-4, trust=0.02, guard=False):
        super().__init__(params, {"lr": lr, "momentum": momentum, "wd": wd, "trust": trust, "guard": guard})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad.add(p, alpha=group["wd"])
                if p.ndim > 1:
                    w_norm, g_norm = p.norm(), g.norm()
                    if group["guard"]:
                        ok = (w_norm > 0) & (g_norm > 0)
                        local = torch.where(ok, group["trust"] * w_norm / torch.where(ok, g_norm, 1.0), 1.0)
                    else:
                        local = group["trust"] * w_norm / g_norm  # ORIGIN
                    g = g * local
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(g)
                p.sub_(group["lr"] * buf)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.side, self.out = nn.Linear(8, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 3)
        self.register_buffer("mask", torch.ones(16, 16))

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        return self.out(h + nn.functional.linear(h, self.side.weight * self.mask))

    @torch.no_grad()
    def prune(self, threshold):
        self.mask.copy_((self.side.weight.abs() > threshold).float())
        self.side.weight.mul_(self.mask)


def build(fixed: bool = False):
    torch.manual_seed(34)
    net = Residual()
    opt = LARS(net.parameters(), lr=0.5, guard=fixed)
    gen = torch.Generator().manual_seed(35)

    def step(i):
        if i in (2, 5):
            net.prune(0.1 if i == 2 else 0.6)
        x = torch.randn(24, 8, generator=gen)
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        for p in opt.state:
            if opt.state[p] and i == 5:
                opt.state[p]["buf"].zero_()  # momentum starts anew after pruning
        opt.step()
        return loss

    return net, step
