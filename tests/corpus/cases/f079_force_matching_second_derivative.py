"""Force matching: the energy |d|^1.5 and its force are finite at d = 0, the derivative of the force is not (double backward)."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "(d^2 + eps)^0.75",
}


class Springs(nn.Module):
    """A bond energy with learned rest lengths and stiffness."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.stiff = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1))
        self.rest = nn.Parameter(torch.tensor(1.0))

    def forward(self, x, kind):
        gap = x[:, 1:] - x[:, :-1] - self.rest
        if self.eps:
            energy = (gap.square() + self.eps) ** 0.75
        else:
            energy = gap.abs() ** 1.5  # ORIGIN
        return (nn.functional.softplus(self.stiff(kind)).squeeze(-1) * energy).sum(1)


def build(fixed: bool = False):
    torch.manual_seed(79)
    net = Springs(1e-6 if fixed else 0.0)
    opt = torch.optim.SGD([{"params": net.stiff.parameters()}, {"params": [net.rest], "lr": 0.0}], lr=1e-3)
    gen = torch.Generator().manual_seed(179)

    def step(i):
        x = torch.arange(6.0).repeat(4, 1) + 0.2 * torch.randn(4, 6, generator=gen)
        if i == 3:
            x[1, 2:4] = torch.tensor([2.0, 3.0])  # a bond exactly at its rest length
        x.requires_grad_()
        kind = torch.rand(4, 5, 2, generator=gen)
        opt.zero_grad()
        (force,) = torch.autograd.grad(-net(x, kind).sum(), x, create_graph=True)
        loss = (force - 0.1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
