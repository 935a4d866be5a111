"""Adam by hand with all its state in float16: the second moment of small gradients underflows to zero and eps is zero in half."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("addcdiv_",),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("optimizer-arithmetic", "div-by-zero", "eps-underflow", "dtype-underflow"),
    "symptom": "param-inf",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "state in float32, or eps = 1e-4",
}


class HalfAdam:
    def __init__(self, params, lr=1e-3, eps=1e-8):
        self.params, self.lr, self.eps, self.t = list(params), lr, eps, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p, m, v in zip(self.params, self.m, self.v, strict=True):
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            v.mul_(0.999).add_(p.grad * p.grad, alpha=0.001)
            denom = v.div(1 - 0.999**self.t).sqrt().add_(self.eps)
            p.sub_(self.lr * (m / (1 - 0.9**self.t)) / denom)  # ORIGIN

    def zero_grad(self):
        for p in self.params:
            p.grad = None


def build(fixed: bool = False):
    torch.manual_seed(216)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).half()
    opt = HalfAdam(net.parameters(), eps=1e-3 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(217)

    def step(i):
        x = torch.randn(64, 6, generator=gen)
        out = net(x.half()).float()
        loss = nn.functional.cross_entropy(out, x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
