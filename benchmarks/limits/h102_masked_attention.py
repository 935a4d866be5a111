"""Masked attention: a mask of -inf in a softmax that has an open place."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 4.187151639,
    "why": "a mask of -inf in a softmax that has an open place",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([[1.0, 0.2, 3.0], [0.4, 0.1, 2.0]]))

    def forward(self):
        w = torch.softmax(self.s.masked_fill(torch.tensor([[False, True, False], [False, False, True]]), float("-inf")), 1)
        loss = (w * torch.tensor([1.0, 2.0, 3.0])).sum()
        return loss


def build(fixed: bool = False):
    net = Model()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad()
        loss = net()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([[1.0, 0.2, 3.0], [0.4, 0.1, 2.0]], dtype=torch.float64, requires_grad=True)
    w = torch.softmax(s.masked_fill(torch.tensor([[False, True, False], [False, False, True]]), float("-inf")), 1)
    loss = (w * torch.tensor([1.0, 2.0, 3.0])).sum()
    ds_, = torch.autograd.grad(loss, [s])
    return {"s": ds_}
