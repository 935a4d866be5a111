"""BPR loss -log(sigmoid(difference)) with a difference of -150.

Source: well-known fault (recommenders)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 50.21331442,
}


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([3.0, -2.0]))

    def forward(self, fixed):
        items = torch.tensor([[-40.0, 15.0], [0.2, 0.1], [1.0, 0.5]])
        if fixed:
            loss = -nn.functional.logsigmoid(items @ self.u).mean()
        else:
            loss = -torch.log(torch.sigmoid(items @ self.u)).mean()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Ranker()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    u = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    items = torch.tensor([[-40.0, 15.0], [0.2, 0.1], [1.0, 0.5]])
    loss = -nn.functional.logsigmoid(items @ u).mean()
    du_, = torch.autograd.grad(loss, [u])
    return {"u": du_}
