"""Weight normalisation and pruning: once a row of v is zero, g * v / ||v|| is NaN."""
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

META = {
    "origin_op": "_weight_norm_interface",
    "also_ops": ("_weight_norm", "div", "mul"),
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 6,
    "n_steps": 9,
    "fix": "prune g, not v",
}


def build(fixed: bool = False):
    torch.manual_seed(66)
    hidden = weight_norm(nn.Linear(8, 12))
    net = nn.Sequential(hidden, nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(67)

    @torch.no_grad()
    def prune(share):
        g, v = hidden.parametrizations.weight.original0, hidden.parametrizations.weight.original1
        size = hidden.weight.abs().sum(1)
        low = size.argsort()[: int(share * len(size))]
        if fixed:
            g[low] = 0.0
        else:
            v[low] = 0.0

    def step(i):
        if i == 6:
            prune(0.25)
        x = torch.randn(24, 8, generator=gen)
        y = x[:, :1] - 0.5 * x[:, 1:2]
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
