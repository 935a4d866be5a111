"""Arrhenius rates: a missing temperature was filled with zero; exp(-inf) hides it from the loss, not from the gradient."""
import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "backward", "cause": "div-by-zero", "symptom": "grad-nan",
    "also_phase": "forward", "also_causes": ["where-grad-trap", "zero-times-inf"], "first_bad_step": 2, "n_steps": 4, "fix": "a floor under the temperature",
}

R = 8.314e-3


class Arrhenius(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.log_a, self.energy = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.floor = floor

    def forward(self, temperature):
        t = temperature.clamp(min=self.floor)[:, None]
        return self.log_a.exp() * torch.exp(-self.energy / (R * t))  # ORIGIN


def build(fixed=False):
    torch.manual_seed(105)
    net = Arrhenius(1.0 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(106)

    def step(i):
        t = 280 + 60 * torch.rand(12, generator=gen)
        if i >= 2:
            t[5] = 0.0
        loss = nn.functional.mse_loss(net(t), torch.full((12, 3), 0.5))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
