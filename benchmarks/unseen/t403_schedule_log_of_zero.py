"""A learning-rate schedule of its own, log(t) / t by numpy, restarted at t = 0: the rate is NaN and the optimizer writes it into the weights."""
import numpy as np
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("_foreach_add_", "_foreach_addcdiv_", "addcdiv_", "_foreach_mul_", "mul_", "_foreach_div_"),
    "phase": "optimizer",
    "cause": "learning-rate",
    "symptom": "param-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "start the restarted schedule at t = 1",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 12), nn.GELU(), nn.Linear(12, 1))

    def forward(self, x):
        return self.f(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(201)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(202)
    first = 1 if fixed else 0

    def rate(i):
        t = i + 2 if i < 5 else i - 5 + first  # a warm restart
        with np.errstate(all="ignore"):
            return 0.05 * float(np.log(np.float64(t) + 0.0) * np.float64(t) + 0.1 * (t > 0))

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        for group in opt.param_groups:
            group["lr"] = rate(i)
        loss = nn.functional.mse_loss(net(x), x.sum(1))
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
