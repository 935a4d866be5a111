"""A state vector of complex amplitudes, half a rotation by a square root: an amplitude of zero has no derivative."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "an epsilon under the root",
    "also_ops": ["div"],
    "also_causes": ["div-by-zero"],
}


class Circuit(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.phase = nn.Parameter(0.3 * torch.randn(8))
        self.mix = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat) / 4)

    def forward(self, amp):
        psi = torch.polar(torch.ones(8), self.phase) * (amp @ self.mix)
        half = torch.sqrt(psi + self.eps)  # ORIGIN
        return (half @ self.mix).abs().square()


def build(fixed: bool = False):
    torch.manual_seed(931)
    net = Circuit(1e-4 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(932)

    def step(i):
        amp = torch.randn(5, 8, dtype=torch.cfloat, generator=gen)
        if i == 3:
            amp[2] = 0.0
        opt.zero_grad()
        p = net(amp)
        p = p / (p.sum(-1, keepdim=True) + 1e-3)
        loss = nn.functional.mse_loss(p, torch.full_like(p, 0.125))
        loss.backward()
        opt.step()
        return loss

    return net, step
