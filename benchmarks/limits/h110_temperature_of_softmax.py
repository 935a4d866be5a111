"""Temperature of softmax: softmax of scores of 5,000."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 1.268941421,
    "why": "softmax of scores of 5,000",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([5000.0, 4999.0, 3.0]))

    def forward(self):
        loss = (torch.softmax(self.s, 0) * torch.tensor([1.0, 2.0, 3.0])).sum()
        return loss


def build(fixed: bool = False):
    net = Model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(i):
        opt.zero_grad()
        loss = net()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([5000.0, 4999.0, 3.0], dtype=torch.float64, requires_grad=True)
    loss = (torch.softmax(s, 0) * torch.tensor([1.0, 2.0, 3.0])).sum()
    ds_, = torch.autograd.grad(loss, [s])
    return {"s": ds_}
