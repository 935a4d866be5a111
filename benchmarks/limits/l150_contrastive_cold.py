"""InfoNCE -log(e^(p / T) / (e^(p / T) + e^(n / T))) at a temperature of 0.01: inf / inf.

Source: well-known fault (contrastive losses by hand)
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.1566308438,
}


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.95, 0.9]))
        self.n = nn.Parameter(torch.tensor([0.94, 0.2]))

    def forward(self, fixed):
        if fixed:
            loss = nn.functional.softplus((self.n - self.p) / 0.01).mean()
        else:
            top = torch.exp(self.p / 0.01)  # ORIGIN
            loss = -torch.log(top / (top + torch.exp(self.n / 0.01))).mean()
        return loss


def build(fixed: bool = False):
    net = Contrast()
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    p = torch.tensor([0.95, 0.9], dtype=torch.float64, requires_grad=True)
    n = torch.tensor([0.94, 0.2], dtype=torch.float64, requires_grad=True)
    loss = nn.functional.softplus((n - p) / 0.01).mean()
    dp_, dn_ = torch.autograd.grad(loss, [p, n])
    return {"p": dp_, "n": dn_}
