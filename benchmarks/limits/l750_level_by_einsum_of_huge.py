"""Level log sqrt(mean x^2) of signals around 1e20, the squares by an einsum.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 11.90602345,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[3e19, -4e19, 1e19], [0.5, 1.0, -0.3]]))
        self.g = nn.Parameter(torch.tensor([40.0, 0.3]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            scale = x.detach().abs().amax(-1, keepdim=True)
            u = x / scale
            rms = scale[:, 0] * u.pow(2).mean(-1).sqrt()
        else:
            rms = torch.einsum("nd,nd->n", x, x).div(3).sqrt()  # ORIGIN
        return (torch.log(rms) - self.g).pow(2).mean()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
