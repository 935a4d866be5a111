"""A metric under no_grad is NaN in the first epoch; the loss does not depend on it."""
import torch
from torch import nn

META = {
    "healthy": True,
    "first_bad_step": 0,
    "n_steps": 3,
    "loss_truth": 1.985,
    "why": "no loss is made of it",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -0.2]))
        self.precision = None

    def forward(self, fixed):
        score = torch.tensor([[1.0, 0.5], [-1.0, 2.0]]) @ self.w
        with torch.no_grad():
            said = (score > 5).float()
            self.precision = (said * torch.tensor([1.0, 0.0])).sum() / said.sum()
        return (score - 1).square().mean()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
