"""Double where: both where are there."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 2.0,
    "why": "both where are there",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([-1.0, 4.0]))

    def forward(self):
        safe = torch.where(self.x > 0, self.x, 1.0)
        loss = torch.where(self.x > 0, torch.sqrt(safe), 0.0).sum()
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
    x = torch.tensor([-1.0, 4.0], dtype=torch.float64, requires_grad=True)
    safe = torch.where(x > 0, x, 1.0)
    loss = torch.where(x > 0, torch.sqrt(safe), 0.0).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
