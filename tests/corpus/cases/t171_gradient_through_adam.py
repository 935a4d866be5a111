"""Hyper-gradients through torch's differentiable Adam: a hidden unit without gradient has a second moment of zero, and the derivative of its root is infinite."""

import torch
from torch import nn
from torch.func import functional_call

META = {
    "origin_op": "sqrt",
    "also_ops": ("addcdiv_", "div"),
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("zero-times-inf",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "differentiate plain gradient steps",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 2)
        with torch.no_grad():
            self.body.bias[3] = -100.0  # a dead unit

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def build(fixed: bool = False):
    torch.manual_seed(828)
    model = Net()
    weights = nn.Parameter(torch.zeros(16))
    model.register_parameter("weights", weights)
    outer = torch.optim.SGD([weights], lr=0.1)
    gen = torch.Generator().manual_seed(1828)

    def inner(x, y):
        fast = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters() if n != "weights"}
        each = nn.functional.cross_entropy(functional_call(model, fast, (x,)), y, reduction="none")
        grads = torch.autograd.grad((torch.sigmoid(weights) * each).mean(), list(fast.values()), create_graph=True)
        live = {n: p.clone() for n, p in fast.items()}
        if fixed:
            return {n: p - 0.1 * g for (n, p), g in zip(live.items(), grads, strict=True)}
        opt = torch.optim.Adam(list(live.values()), lr=0.1, differentiable=True)
        for p, g in zip(live.values(), grads, strict=True):
            p.grad = g
        opt.step()  # ORIGIN
        return live

    def step(i):
        x, q = torch.randn(16, 5, generator=gen), torch.randn(16, 5, generator=gen)
        fast = inner(x, (x[:, 0] > 0).long())
        loss = nn.functional.cross_entropy(functional_call(model, fast, (q,)), (q[:, 0] > 0).long())
        outer.zero_grad()
        loss.backward()
        outer.step()
        return loss

    return model, step
