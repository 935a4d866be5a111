"""MAML with functional_call: each task's targets are standardised, and one task is a constant function."""
import torch
from torch import nn
from torch.func import functional_call

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "std-of-constant",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "divide by the deviation plus an epsilon",
}


def build(fixed: bool = False):
    torch.manual_seed(61)
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(62)

    def task(flat):
        amp = torch.rand(1, generator=gen) * 4 + 0.5
        if flat:
            amp = torch.zeros(1)
        phase = torch.rand(1, generator=gen) * 3
        x = torch.rand(10, 1, generator=gen) * 8 - 4
        y = amp * torch.sin(x + phase)
        y = (y - y.mean()) / (y.std() + (1e-6 if fixed else 0.0))  # ORIGIN
        return x[:5], y[:5], x[5:], y[5:]

    def adapt(x, y, n=2, lr=0.05):
        fast = dict(net.named_parameters())
        for _ in range(n):
            loss = nn.functional.mse_loss(functional_call(net, fast, (x,)), y)
            grads = torch.autograd.grad(loss, tuple(fast.values()), create_graph=True)
            fast = {k: p - lr * g for (k, p), g in zip(fast.items(), grads)}
        return fast

    def step(i):
        opt.zero_grad()
        total = 0.0
        for t in range(4):
            xs, ys, xq, yq = task(flat=i == 3 and t == 2)
            fast = adapt(xs, ys)
            total = total + nn.functional.mse_loss(functional_call(net, fast, (xq,)), yq)
        loss = total / 4
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        opt.step()
        return loss

    return net, step
