"""A half-precision detector weights an auxiliary term by 1e-6 after its mean over many pixels; its gradients are zero once they are half."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "also_ops": ("to", "mul"),
    "phase": "backward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 3,
    "watch": "grad:aux.weight",
    "fix": "cast to float32 before the mean",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.main, self.aux = nn.Linear(16, 1, bias=False), nn.Linear(16, 1, bias=False)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.main(h), self.aux(h)


def build(fixed: bool = False):
    torch.manual_seed(254)
    net = Net() if fixed else Net().half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(754)

    def step(i):
        opt.zero_grad()
        x = torch.randn(256, 6, generator=gen).to(net.aux.weight.dtype)
        main, aux = net(x)
        loss = main.float().square().mean() + 1e-7 * aux.float().square().mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
