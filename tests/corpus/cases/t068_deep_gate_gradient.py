"""A plain stack of eighty steep tanh layers near their linear point: forward stays bounded, the gradient grows threefold a layer."""

import torch
from torch import nn

META = {
    "origin_op": "mm",
    "also_ops": ("tanh", "addmm", "linear", "tanh_backward"),
    "phase": "backward",
    "cause": "exploding-gradient",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "scale the layers to gain one",
}


class Deep(nn.Module):
    def __init__(self, gain, depth=90, dim=6):
        super().__init__()
        self.layers = nn.ParameterList(
            [nn.Parameter(gain * torch.linalg.qr(torch.randn(dim, dim))[0]) for _ in range(depth)]
        )
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        for w in self.layers:
            x = torch.tanh(x @ w)  # ORIGIN
        return self.out(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(205)
    net = Deep(1.0 if fixed else 4.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        x = torch.zeros(8, 6)
        loss = (net(x) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
