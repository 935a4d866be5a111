"""Per-sample gradients by torch.func of a product of gates, one of them shut and the others large."""

import torch
from torch import nn

META = {
    "origin_op": "prod",
    "also_ops": ["cumprod", "mul"],
    "phase": "backward",
    "cause": "zero-times-inf",
    "also_causes": ["dtype-overflow"],
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "work with sums of logarithms, or bounded gates",
}


class Gated(nn.Module):
    def __init__(self, bounded):
        super().__init__()
        self.bounded = bounded
        self.gate = nn.Linear(5, 9)
        with torch.no_grad():
            self.gate.weight.abs_()
            self.gate.weight[[0, 1]] *= -1.0
            self.gate.bias.fill_(1.5)

    def forward(self, x):
        gates = torch.relu(self.gate(x))
        if self.bounded:
            gates = torch.tanh(gates)
        return torch.log1p(gates.prod(-1))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(947)
    net = Gated(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(47)

    def loss_of(weights, x, y):
        return (torch.func.functional_call(net, weights, (x.unsqueeze(0),)).squeeze(0) - y).square()

    def step(i):
        x, y = torch.rand(6, 5, generator=gen), torch.rand(6, generator=gen)
        if i >= 2:
            x[1] = x[1] * 1e13  # a reading in the wrong unit
        weights = {name: p.detach() for name, p in net.named_parameters()}
        each, losses = torch.func.vmap(torch.func.grad_and_value(loss_of), (None, 0, 0))(weights, x, y)
        for name, p in net.named_parameters():
            p.grad = each[name].mean(0)
        opt.step()
        return losses.mean()

    return net, step
