"""sigmoid as e^x / (1 + e^x) at x = 100: inf / inf.

Source: well-known fault (logistic regression by hand)
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
    "loss_truth": 0.2628449995,
}


class Logistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([4.0, -1.0]))

    def forward(self, fixed):
        x = torch.tensor([[30.0, 20.0], [0.1, 0.5], [-0.2, 0.3]])
        if fixed:
            p = torch.sigmoid(x @ self.w)
        else:
            p = torch.exp(x @ self.w) / (1 + torch.exp(x @ self.w))  # ORIGIN
        loss = (p - torch.tensor([1.0, 0.0, 1.0])).pow(2).mean()
        return loss


def build(fixed: bool = False):
    net = Logistic()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    w = torch.tensor([4.0, -1.0], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[30.0, 20.0], [0.1, 0.5], [-0.2, 0.3]])
    p = torch.sigmoid(x @ w)
    loss = (p - torch.tensor([1.0, 0.0, 1.0])).pow(2).mean()
    dw_, = torch.autograd.grad(loss, [w])
    return {"w": dw_}
