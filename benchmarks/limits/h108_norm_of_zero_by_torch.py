"""Norm of zero by torch: torch's norm has gradient 0 at 0."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 3,
    "first_bad_step": 0,
    "loss_truth": 5.0,
    "why": "torch's norm has gradient 0 at 0",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))

    def forward(self):
        loss = self.w.norm(dim=1).sum()
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
    w = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    loss = w.norm(dim=1).sum()
    dw_, = torch.autograd.grad(loss, [w])
    return {"w": dw_}
