"""Standard deviation over the neighbours of a node as the root of E[h^2] - E[h]^2: with one neighbour, or none, it is identically 0.

Source: well-known fault (several aggregators per node, leaves of a graph)
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
    "loss_truth": 0.2488537729,
    "fix": "the root only for nodes of degree 2 or more",
}
SOURCE, TARGET, NODES = [1, 2, 3, 0, 2, 0], [0, 0, 0, 1, 1, 2], 4
FEATURES = [[0.5, -1.0], [1.5, 0.25], [-0.75, 0.5], [0.25, 2.0]]
WEIGHT = [[0.8, -0.5], [0.3, 0.9]]
GOAL = [[0.5, 0.9], [0.3, 1.1], [0.2, 0.1], [0.4, 0.0]]


class Deviation(nn.Module):
    def root(self, variance, degree):
        return variance.clamp(min=0).sqrt()  # ORIGIN

    def forward(self, h, source, target):
        degree = torch.zeros(NODES, 1).index_add_(0, target, torch.ones(len(target), 1))
        count = degree.clamp(min=1)
        mean = torch.zeros_like(h).index_add(0, target, h[source]) / count
        square = torch.zeros_like(h).index_add(0, target, h[source] ** 2) / count
        return mean, self.root(square - mean**2, degree)


class DeviationOfSeveral(Deviation):
    def root(self, variance, degree):
        some = (degree > 1) & (variance > 0)
        return torch.where(some, torch.where(some, variance, torch.ones_like(variance)).sqrt(), torch.zeros_like(variance))


class Layer(nn.Module):
    def __init__(self, aggregate):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(WEIGHT))
        self.mix = nn.Parameter(torch.tensor([0.7, 1.2]))
        self.aggregate = aggregate

    def forward(self, x, source, target):
        mean, deviation = self.aggregate(x @ self.weight, source, target)
        return self.mix[0] * mean + self.mix[1] * deviation


def build(fixed: bool = False):
    net = Layer(DeviationOfSeveral() if fixed else Deviation())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, source, target, goal = torch.tensor(FEATURES), torch.tensor(SOURCE), torch.tensor(TARGET), torch.tensor(GOAL)

    def step(i):
        opt.zero_grad()
        loss = (net(x, source, target) - goal).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x, goal = torch.tensor(FEATURES, dtype=torch.float64), torch.tensor(GOAL, dtype=torch.float64)
    w = torch.tensor(WEIGHT, dtype=torch.float64, requires_grad=True)
    mix = torch.tensor([0.7, 1.2], dtype=torch.float64, requires_grad=True)
    loss = 0.0
    for node in range(NODES):
        near = x[[s for s, t in zip(SOURCE, TARGET) if t == node]]
        middle = near.mean(0) if len(near) else torch.zeros(2, dtype=torch.float64)
        out = mix[0] * (middle @ w)
        if len(near) > 1:
            c = (near - middle).T @ (near - middle) / len(near)
            out = out + mix[1] * torch.einsum("if,ij,jf->f", w, c, w).sqrt()
        loss = loss + (out - goal[node]).pow(2).sum() / 8
    return dict(zip(("weight", "mix"), torch.autograd.grad(loss, (w, mix))))
