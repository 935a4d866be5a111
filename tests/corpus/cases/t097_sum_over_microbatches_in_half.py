"""float16 weights whose gradients are summed over many micro-batches without dividing: the sum leaves the range of float16."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("add", "AccumulateGrad"),
    "phase": "backward",
    "cause": "dtype-overflow",
    "symptom": "grad-inf",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "divide each loss by the number of micro-batches",
    "twin_rests": (),
}


def build(fixed: bool = False):
    torch.manual_seed(471)
    net = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1)).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(571)

    def step(i):
        opt.zero_grad()
        parts = 4 if i < 2 else 48
        total = 0.0
        for _ in range(parts):
            x = torch.randn(16, 12, generator=gen)
            height = 1500.0 + 50.0 * x[:, :1]
            loss = (net(x.half()).float() - height).abs().mul(2.0).sum() * 60.0  # ORIGIN
            if fixed:
                loss = loss / (parts * 60.0)
            loss.backward()  # ALSO
            total = total + loss.detach()
        opt.step()
        return total

    return net, step
