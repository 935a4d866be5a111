"""Gradient penalty of a critic whose units are all off for one sample: the norm of a zero gradient, by a root.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.2583986189,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.out = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[1.0, 0.5], [0.3, 1.0]]))
            self.lin.bias.copy_(torch.tensor([-0.5, -0.2]))
            self.out.weight.copy_(torch.tensor([[0.7, -1.1]]))

    def forward(self, fixed):
        x = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], requires_grad=True)
        score = self.out(torch.relu(self.lin(x)))
        (g,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        if fixed:
            size = torch.linalg.vector_norm(g, dim=1)
        else:
            size = (g**2).sum(1).sqrt()  # ORIGIN
        return ((size - 1) ** 2).mean() + score.mean()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

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
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
