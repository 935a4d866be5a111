"""Log-likelihood of padded steps: the log of a padded 0 is multiplied by a mask of 0.

Source: well-known fault (0 times log 0)
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
    "kind": "masked",
    "loss_truth": 0.8864200123,
}


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([[0.5, 0.2], [0.7, 0.0]]))

    def forward(self, fixed):
        mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
        if fixed:
            loss = -(mask * torch.log(torch.where(mask > 0, self.p, 1.0))).sum() / mask.sum()
        else:
            loss = -(mask * torch.log(self.p)).sum() / mask.sum()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Steps()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    p = torch.tensor([[0.5, 0.2], [0.7, 0.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    loss = -(mask * torch.log(torch.where(mask > 0, p, 1.0))).sum() / mask.sum()
    dp_, = torch.autograd.grad(loss, [p])
    return {"p": dp_}
