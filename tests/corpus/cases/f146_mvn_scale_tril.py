"""A trajectory head predicts a Cholesky factor with a ReLU on its diagonal; a zero makes the covariance singular."""

import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "also_ops": ("linalg_solve_triangular", "triangular_solve"),
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("degenerate-matrix", "div-by-zero"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "softplus plus 1e-3 on the diagonal",
}


class Traj(nn.Module):
    def __init__(self, soft):
        super().__init__()
        self.soft = soft
        self.net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 5))

    def forward(self, x, shift):
        mx, my, a, b, c = self.net(x).unbind(-1)
        diag = torch.stack([a, b], -1) + shift
        diag = F.softplus(diag) + 1e-3 if self.soft else F.relu(diag)
        tril = torch.diag_embed(diag) + F.pad(c[:, None, None], (0, 1, 1, 0))
        return MultivariateNormal(torch.stack([mx, my], -1), scale_tril=tril, validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(244)
    net = Traj(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(744)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        y = torch.randn(8, 2, generator=gen)
        shift = torch.full((8, 2), 2.0)
        if i == 2:
            shift[3, 0] = -4.0
        loss = -net(x, shift).log_prob(y).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
