"""Two cross-entropies by hand in one loss, both with scores that overflow.

Source: well-known fault (two-tower contrastive loss)
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 0.894331795,
}


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[120.0, 119.5], [0.3, 0.1]]))
        self.b = nn.Parameter(torch.tensor([[0.2, 0.9], [140.0, 141.0]]))

    def forward(self, fixed):
        if fixed:
            loss = -torch.log_softmax(self.a, 1)[:, 0].mean() - torch.log_softmax(self.b, 1)[:, 1].mean()
        else:
            p = torch.exp(self.a) / torch.exp(self.a).sum(1, keepdim=True)  # ORIGIN
            q = torch.exp(self.b) / torch.exp(self.b).sum(1, keepdim=True)  # ORIGIN
            loss = -torch.log(p[:, 0]).mean() - torch.log(q[:, 1]).mean()
        return loss


def build(fixed: bool = False):
    net = Towers()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([[120.0, 119.5], [0.3, 0.1]], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([[0.2, 0.9], [140.0, 141.0]], dtype=torch.float64, requires_grad=True)
    loss = -torch.log_softmax(a, 1)[:, 0].mean() - torch.log_softmax(b, 1)[:, 1].mean()
    da_, db_ = torch.autograd.grad(loss, [a, b])
    return {"a": da_, "b": db_}
