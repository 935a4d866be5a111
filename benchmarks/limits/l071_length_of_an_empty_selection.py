"""Loss over the selected entries by their number, of which there are none."""
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
    "loss_truth": 0.29000000000000004,
    "fix": "what the quotient tends to",
}

X = torch.tensor([[0.5, 1.2, 0.3], [0.8, 0.3, 1.1]])


class Net(nn.Module):
    def __init__(self, q, fixed):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3, -0.2, 0.4]))
        self.q, self.fixed = q, fixed

    def forward(self, x):
        some = (x * self.w)[x > 5]
        count = max(len(some), 1) if self.fixed else len(some)
        fit = some.square().sum() / count  # ORIGIN
        return fit + (self.w**2).sum()


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
    loss = (w**2).sum()
    return {"w": torch.autograd.grad(loss, w)[0]}
