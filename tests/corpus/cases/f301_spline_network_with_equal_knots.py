"""A spline network takes its knots from quantiles of its inputs: where they coincide a basis function is 0/0 and
repaired only forward.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "repair-forward-only",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "mix a uniform grid into the quantiles, so that knots stay apart",
}


def basis(x, knots, degree=2):
    """x: (batch, features); knots: (features, n)."""
    x, knots = x.unsqueeze(2), knots.unsqueeze(0)
    value = ((x >= knots[..., :-1]) & (x < knots[..., 1:])).to(x.dtype)
    for k in range(1, degree + 1):
        left = (x - knots[..., : -(k + 1)]) / (knots[..., k:-1] - knots[..., : -(k + 1)])  # ORIGIN
        right = (knots[..., k + 1 :] - x) / (knots[..., k + 1 :] - knots[..., 1:-k])  # ALSO
        value = torch.nan_to_num(left * value[..., :-1]) + torch.nan_to_num(right * value[..., 1:])
    return value


class SplineLayer(nn.Module):
    def __init__(self, cin, cout, knots=9):
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2.0, 2.0, knots).repeat(cin, 1))
        self.weight = nn.Parameter(0.3 * torch.randn(cin, knots - 3, cout))
        self.base = nn.Linear(cin, cout)

    def forward(self, x):
        return torch.einsum("bik,iko->bo", basis(x, self.knots), self.weight) + self.base(torch.relu(x))

    @torch.no_grad()
    def update_grid(self, x, uniform):
        quantiles = torch.quantile(x, torch.linspace(0, 1, self.knots.shape[1]), dim=0).t()
        even = torch.linspace(-2.0, 2.0, self.knots.shape[1]).expand_as(quantiles)
        self.knots.copy_(uniform * even + (1 - uniform) * quantiles)


def build(fixed: bool = False):
    torch.manual_seed(962)
    first, second = SplineLayer(3, 5), SplineLayer(5, 1)
    net = nn.ModuleList([first, second])
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(62)

    def step(i):
        x = torch.randn(24, 3, generator=gen)
        y = torch.sin(x[:, :1]) * x[:, 1:2]
        hidden = torch.relu(first(x))  # half of the features are zero: equal quantiles
        if i == 2:
            second.update_grid(hidden, 0.05 if fixed else 0.0)
        opt.zero_grad()
        loss = nn.functional.mse_loss(second(hidden), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
