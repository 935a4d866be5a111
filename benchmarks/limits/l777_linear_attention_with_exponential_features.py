"""Linear attention with features exp(k) and exp(q), both normalised by their sum; a key of 95.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.082809892,
}


def linear_attention(q, k, v):
    q, k = torch.exp(q), torch.exp(k)
    context = k.t() @ v
    norm = q @ k.sum(0)
    return (q @ context) / norm[:, None]  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[0.5, -0.3], [0.1, 0.8]]))
        self.k = nn.Parameter(torch.tensor([[95.0, 94.0], [94.5, 95.5], [93.0, 94.2]]))

    def forward(self, fixed):
        v = torch.tensor([[1.0, 0.2], [-0.5, 0.7], [0.3, -0.9]])
        k = self.k - self.k.detach().max() if fixed else self.k
        out = linear_attention(self.q, k, v)
        return (out - torch.tensor([[0.3, 0.1], [0.0, 0.5]])).pow(2).sum()


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
