"""Binary cross entropy by hand over several lines: a certain score.

Source: well-known fault (losses by hand)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 13.92911289,
}


class Score(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([40.0, -1.0, 0.5]))

    def forward(self, fixed):
        y = torch.tensor([0.0, 1.0, 1.0])
        if fixed:
            terms = -torch.nn.functional.binary_cross_entropy_with_logits(self.z, y, reduction='none')
        else:
            p = torch.sigmoid(self.z)
            terms = (
                y * torch.log(p)
                + (1 - y) * torch.log(1 - p)  # ORIGIN
            )
        loss = -terms.mean()
        return loss


def build(fixed: bool = False):
    net = Score()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    z = torch.tensor([40.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.0, 1.0, 1.0])
    terms = -torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction='none')
    loss = -terms.mean()
    found = torch.autograd.grad(loss, [z], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["z"], [z], found)}
    return true
