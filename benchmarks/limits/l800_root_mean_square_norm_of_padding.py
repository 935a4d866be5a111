"""Root mean square normalisation without an epsilon, of a batch with a padded token that is left
out of the loss.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "rsqrt",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.573172255,
}


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 0.8]))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Parameter(torch.tensor([[0.0, 0.0], [0.4, -0.9], [1.1, 0.3]]))
        self.norm = RMSNorm()

    def forward(self, fixed):
        tokens = torch.tensor([1, 2, 0])
        mask = torch.tensor([1.0, 1.0, 0.0])
        if fixed:
            tokens, mask = tokens[:2], mask[:2]
        out = self.norm(self.embed[tokens])
        per_token = (out - 0.5).pow(2).sum(-1)
        return (per_token * mask).sum() / mask.sum()


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
