"""Half network, loss scale 4096 by hand, weights updated by hand: the division by the scale was forgotten in the update."""
import torch
from torch import nn

META = {
    "origin_op": "sub_",
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 7,
    "oracle": "drift",
    "fix": "divide the gradients by the scale in the update",
}


def build(fixed: bool = False):
    torch.manual_seed(300)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    gen = torch.Generator().manual_seed(301)
    scale = 4096.0

    def step(i):
        x = torch.randn(32, 6, generator=gen)
        loss = nn.functional.mse_loss(net(x), x[:, :2])  # FIRST
        net.zero_grad()
        (loss * scale).backward()  # ALSO
        with torch.no_grad():
            for p in net.parameters():
                g = p.grad / scale if fixed else p.grad
                p -= 0.05 * g  # ORIGIN
        return loss

    return net, step
