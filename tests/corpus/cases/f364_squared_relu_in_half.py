"""Squared ReLU (Primer) in a half feed-forward: activations grow with training until the square passes 65504."""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 7,
    "fix": "float32, or a bound",
}


class Ffn(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        h = torch.relu(self.up(x))
        return self.down(h.square() / 100)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(322)
    net = Ffn()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(323)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        if i >= 3:
            x[7] = 500.0
        if fixed:
            loss = nn.functional.smooth_l1_loss(net(x), x.clamp(-3, 3))
        else:
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)
            loss = nn.functional.smooth_l1_loss(out.float(), x.clamp(-3, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
