"""Implicit MAML solves for its meta-gradient by conjugate gradients; for a task whose hinge is satisfied the right-hand side is zero: 0/0."""

import torch
from torch import nn
from torch.func import functional_call

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("optimizer-arithmetic",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "twin_rests": (4,),
    "fix": "stop when the residual is small",
}


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def hinge(score, y):
    return (1 - y * score).clamp(min=0).mean()


def conjugate_gradient(product, b, iterations, tolerance):
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), r @ r
    for _ in range(iterations):
        if rr < tolerance:
            break
        ap = product(p)
        alpha = rr / (p @ ap)  # ORIGIN
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        p, rr = r + (new / rr) * p, new
    return x


def build(fixed: bool = False):
    torch.manual_seed(956)
    model = Scorer()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(1956)
    names = [n for n, _ in model.named_parameters()]
    curvature = torch.linspace(1.0, 4.0, sum(p.numel() for p in model.parameters()))

    def adapt(x, y):
        phi = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
        for _ in range(2):
            grads = torch.autograd.grad(hinge(functional_call(model, phi, (x,)), y), list(phi.values()))
            phi = {n: (p - 0.1 * g).detach().requires_grad_() for (n, p), g in zip(phi.items(), grads, strict=True)}
        return phi

    def step(i):
        x = torch.randn(10, 5, generator=gen)
        y = torch.sign(x[:, 0])
        phi = adapt(x, y)
        far = 0.0 if i != 4 else 50.0  # the query of one task lies far on the right side of the margin
        score = functional_call(model, phi, (x,)) + far * y
        loss = hinge(score, y)
        b = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(phi.values()))])
        with torch.no_grad():
            solved = conjugate_gradient(lambda v: (1 + curvature) * v, b, 5, 1e-12 if fixed else -1.0)
        sizes = [phi[n].numel() for n in names]
        opt.zero_grad()
        for p, g in zip(model.parameters(), solved.split(sizes), strict=True):
            p.grad = g.view_as(p)
        opt.step()
        return loss

    return model, step
