"""Series by hand: the small-angle branch is written."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 0.8153142175,
    "why": "the small-angle branch is written",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 0.9]))

    def forward(self):
        small = torch.where(self.w.abs() < 1e-2, torch.ones_like(self.w), self.w)
        loss = (torch.where(self.w.abs() < 1e-2, 1 - self.w**2 / 6, torch.sin(small) / small) - 0.3).pow(2).sum()
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
    w = torch.tensor([0.0, 0.9], dtype=torch.float64, requires_grad=True)
    small = torch.where(w.abs() < 1e-2, torch.ones_like(w), w)
    loss = (torch.where(w.abs() < 1e-2, 1 - w**2 / 6, torch.sin(small) / small) - 0.3).pow(2).sum()
    dw_, = torch.autograd.grad(loss, [w])
    return {"w": dw_}
