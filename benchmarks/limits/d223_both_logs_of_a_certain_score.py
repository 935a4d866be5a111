"""Binary cross-entropy by hand: log p of one sample and log(1 - p) of another are infinite.

Source: well-known fault (BCE without logits)
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 81.83767175,
}


class Binary(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([-200.0, 0.4, 150.0]))

    def forward(self, fixed):
        y = torch.tensor([0.7, 1.0, 0.3])
        if fixed:
            loss = nn.functional.binary_cross_entropy_with_logits(self.s, y)
        else:
            p = torch.sigmoid(self.s)
            positive = -torch.log(p) * y  # ORIGIN
            negative = -torch.log(1 - p) * (1 - y)  # ORIGIN
            loss = (positive + negative).mean()
        return loss


def build(fixed: bool = False):
    net = Binary()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([-200.0, 0.4, 150.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.7, 1.0, 0.3])
    loss = nn.functional.binary_cross_entropy_with_logits(s, y)
    ds_, = torch.autograd.grad(loss, [s])
    return {"s": ds_}
