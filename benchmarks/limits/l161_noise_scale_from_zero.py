"""Scale as the root of a learned variance that starts at 0.

Source: well-known fault (learned variance initialised at 0)
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.2922601798,
    "tolerance": 0.004,
}


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([0.0, 0.8]))

    def forward(self, fixed):
        if fixed:
            s = torch.sqrt(self.v + 1e-6)
        else:
            s = torch.sqrt(self.v)  # ORIGIN
        loss = (s - torch.tensor([0.5, 1.1])).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Scale()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    v = torch.tensor([0.0, 0.8], dtype=torch.float64, requires_grad=True)
    s = torch.sqrt(v + 1e-6)
    loss = (s - torch.tensor([0.5, 1.1])).pow(2).sum()
    dv_, = torch.autograd.grad(loss, [v])
    dv_[0] = -float("inf")  # of (sqrt(v) - 0.5)^2 at v = 0
    return {"v": dv_}
