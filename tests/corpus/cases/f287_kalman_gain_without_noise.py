"""A learned Kalman filter with log-variances: both collapse and the gain is 0 / 0."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "a floor on the measurement noise",
}


class Kalman(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.q, self.r, self.floor = nn.Parameter(torch.tensor(-2.0)), nn.Linear(1, 1), floor

    def forward(self, z, quality):
        x, p, out = z[:, 0], torch.zeros(len(z)), []
        for k in range(1, z.shape[1]):
            p = p + self.q.exp() * (quality[:, k] > 0)
            r = torch.exp(self.r(quality[:, k, None]).squeeze(1)) + self.floor
            gain = p / (p + r)  # ORIGIN
            x, p = x + gain * (z[:, k] - x), (1 - gain) * p
            out.append(x)
        return torch.stack(out, 1)


def build(fixed: bool = False):
    torch.manual_seed(2649)
    net = Kalman(1e-4 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2654)
    with torch.no_grad():
        net.r.weight.fill_(0.5)

    def step(i):
        opt.zero_grad()
        z, quality = torch.randn(4, 5, generator=gen).cumsum(1), torch.rand(4, 5, generator=gen) + 0.1
        if i == 2:
            quality[3, 1:] = -400.0
        loss = (net(z, quality) - z[:, 1:]).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
