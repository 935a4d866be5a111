"""An Adafactor written by hand: rows times columns over their mean, which is 0/0 for a matrix whose whole gradient is zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "add 1e-30 to the squared gradient before it is averaged",
}


class Factored(torch.optim.Optimizer):
    def __init__(self, params, lr, eps):
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                square = p.grad.square() + group["eps"]
                if p.dim() == 2:
                    row, column = square.mean(1, keepdim=True), square.mean(0, keepdim=True)
                    square = row * column / row.mean()  # ORIGIN
                p.sub_(group["lr"] * p.grad / (square.sqrt() + 1e-12))


class Adapter(nn.Module):
    def __init__(self, dim=12, rank=3):
        super().__init__()
        self.base = nn.Linear(dim, 4)
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, 4, bias=False)
        nn.init.zeros_(self.up.weight)  # as adapters start, which leaves `down` without gradient

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def build(fixed: bool = False):
    torch.manual_seed(458)
    net = Adapter()
    opt = Factored(net.parameters(), lr=1e-3, eps=1e-16 if fixed else 0.0)
    gen = torch.Generator().manual_seed(558)

    def step(i):
        x = torch.randn(16, 12, generator=gen)
        y = torch.randint(0, 4, (16,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()  # ALSO
        return loss

    return net, step
