"""Box-Cox transform of positive targets, its power a plain number that is 0."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "form": "plain",
    "loss_truth": 0.7985984980996664,
    "fix": "what the quotient tends to",
}

X = torch.tensor([[0.5, 1.2, 0.3], [0.8, 0.3, 1.1]])


class Net(nn.Module):
    def __init__(self, q, fixed):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3, -0.2, 0.4]))
        self.q, self.fixed = q, fixed

    def forward(self, x):
        y = (x * self.w.exp())
        z = y.log() if self.fixed else (y.pow(self.q) - 1) / self.q  # ORIGIN
        return (z - 0.3).square().mean()


def build(fixed=False):
    net = Net(0, fixed)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(i):
        opt.zero_grad()
        loss = net(X)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    w = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64, requires_grad=True)
    X = torch.tensor([[0.5, 1.2, 0.3], [0.8, 0.3, 1.1]], dtype=torch.float64)
    loss = ((X*w.exp()).log()-0.3).square().mean()
    return {"w": torch.autograd.grad(loss, w)[0]}
