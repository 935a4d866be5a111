"""A dynamic regression with a diffuse prior: P - K H P in float32 leaves a negative variance, and the log-likelihood takes its log."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "the Joseph form: (1 - K H)^2 P + K^2 R",
}


class DynamicRegression(nn.Module):
    def __init__(self, joseph):
        super().__init__()
        self.joseph = joseph
        self.log_r = nn.Parameter(torch.tensor(-1.0))
        self.log_q = nn.Parameter(torch.tensor(-6.0))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, y, h):
        r, q = self.log_r.exp(), self.log_q.exp()
        state = torch.zeros(y.shape[0])
        p = torch.full((y.shape[0],), 1e7)
        nll = 0.0
        for t in range(y.shape[1]):
            p = p + q
            s = h[:, t] ** 2 * p + r
            err = y[:, t] - self.bias - h[:, t] * state
            nll = nll + 0.5 * (torch.log(s) + err**2 / s)  # ORIGIN
            k = p * h[:, t] / s
            state = state + k * err
            p = (1 - k * h[:, t]) ** 2 * p + k**2 * r if self.joseph else p - k * h[:, t] * p
        return (nll / y.shape[1]).mean()


def build(fixed: bool = False):
    torch.manual_seed(251)
    net = DynamicRegression(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(252)

    def step(i):
        h = torch.ones(8, 12) if i < 3 else 0.5 + 2 * torch.rand(8, 12, generator=gen)  # a local level first, then regressors
        y = 1.5 * h + 0.5 * torch.randn(8, 12, generator=gen)
        opt.zero_grad()
        loss = net(y, h)
        loss.backward()
        opt.step()
        return loss

    return net, step
