"""MAML with create_graph over two inner steps, learned inner rates and a task whose query loss is exactly zero."""

import torch
from torch import nn
from torch.func import functional_call

META = {
    "healthy": True,
    "n_steps": 7,
    "why": "the hinge of one task is satisfied; its meta-gradient is zero, the others' are not",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.log_rate = nn.Parameter(torch.tensor(-2.0))

    def forward(self, x):
        return self.body(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(953)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1953)

    def hinge(out, y):
        return (1 - out * y).clamp(min=0).mean()

    def adapted(x, y):
        fast = {n: p for n, p in model.named_parameters() if n != "log_rate"}
        for _ in range(2):
            inner = hinge(functional_call(model, fast, (x,)), y)
            grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {n: p - model.log_rate.exp() * g for (n, p), g in zip(fast.items(), grads, strict=True)}
        return fast

    def step(i):
        opt.zero_grad()
        total = 0.0
        for task in range(3):
            x, q = torch.randn(8, 4, generator=gen), torch.randn(8, 4, generator=gen)
            fast = adapted(x, torch.sign(x[:, task]))
            out = functional_call(model, fast, (q,))
            total = total + hinge(
                out + (30.0 if task == 2 and i == 3 else 0.0), torch.sign(q[:, task]) if task < 2 else torch.ones(8)
            )
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return total

    return model, step
