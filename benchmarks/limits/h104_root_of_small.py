"""Root of small: every root is of at least 1e-6."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 0.5477225675,
    "why": "every root is of at least 1e-6",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([1e-6, 0.3]))

    def forward(self):
        loss = (torch.sqrt(self.v) * torch.tensor([1e-6, 1.0])).sum()
        return loss


def build(fixed: bool = False):
    net = Model()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    v = torch.tensor([1e-6, 0.3], dtype=torch.float64, requires_grad=True)
    loss = (torch.sqrt(v) * torch.tensor([1e-6, 1.0])).sum()
    dv_, = torch.autograd.grad(loss, [v])
    return {"v": dv_}
