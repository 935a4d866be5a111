"""Micro-batch losses are added into one half tensor before a single backward: 40 of them of 2000 each are beyond 65504."""
import torch
from torch import nn

META = {
    "origin_op": "add", "phase": "forward", "cause": "dtype-overflow", "symptom": "loss-inf",
    "first_bad_step": 1, "n_steps": 3, "fix": "accumulate in float32",
}


def build(fixed: bool = False):
    torch.manual_seed(116)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    gen = torch.Generator().manual_seed(117)

    def step(i):
        total = torch.zeros((), dtype=torch.float32 if fixed else torch.float16)
        micro = 20 if i == 0 else 40
        for _ in range(micro):
            x = torch.randn(8, 6, generator=gen)
            y = 45 + 5 * torch.rand(8, 1, generator=gen)
            part = nn.functional.mse_loss(net(x.half()), y.half())
            total = total + part  # ORIGIN
        loss = total / micro
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.float()

    return net, step
