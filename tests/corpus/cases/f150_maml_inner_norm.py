"""MAML with torch.func: the inner loss is the root of a sum of squares, and a task whose targets the model already fits has root zero."""

import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "use the mean square",
}


class Reg(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.net(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(248)
    net = Reg()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(748)

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 3, generator=gen)
        y = torch.randn(10, generator=gen)
        if i == 2:
            net.net.weight.data.zero_()
            y[:5] = 0.0
        params = dict(net.named_parameters())

        def inner(p):
            err = functional_call(net, p, (x[:5],)) - y[:5]
            total = (err * err).sum()
            return total / 5 if fixed else torch.sqrt(total)  # ORIGIN

        fast = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grad(inner)(params).values(), strict=True)}
        loss = F.mse_loss(functional_call(net, fast, (x[5:],)), y[5:])
        loss.backward()
        opt.step()
        return loss

    return net, step
