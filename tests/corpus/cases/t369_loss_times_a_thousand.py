"""A loss scale of 1000 by hand for a bfloat16 network, never divided out."""
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("scaler-misuse",),
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 8,
    "oracle": "drift",
    "fix": "divide the gradients by the factor",
}


def build(fixed: bool = False):
    torch.manual_seed(302)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(303)

    def step(i):
        x = torch.randn(32, 6, generator=gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), x[:, :2])  # FIRST
        opt.zero_grad()
        (1000.0 * loss).backward()  # ALSO
        if fixed:
            for p in net.parameters():
                p.grad /= 1000.0
        opt.step()  # ORIGIN
        return loss

    return net, step
