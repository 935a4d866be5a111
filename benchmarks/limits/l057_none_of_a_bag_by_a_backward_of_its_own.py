"""Noisy-OR pooling of instance probabilities with a hand-written backward, out / (1 - p): one instance is certain."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.259225,
    "fix": "the product of the other factors (two cumprods) in backward",
}


class NoneOf(torch.autograd.Function):
    """prod(1 - p) over the last dimension"""

    @staticmethod
    def forward(ctx, p):
        out = (1 - p).prod(-1)
        ctx.save_for_backward(p, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        p, out = ctx.saved_tensors
        return -grad[..., None] * out[..., None] / (1 - p)  # ORIGIN


def none_of(p):
    one = torch.ones_like(p[..., :1])
    q = 1 - p
    return torch.cumprod(torch.cat([one, q], -1), -1)[..., -1]


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([[0.2, 1.0, 0.4], [0.1, 0.3, 0.5]]))


def build(fixed: bool = False):
    net = Bag()
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    label = torch.tensor([0.6, 1.0])

    def step(i):
        positive = 1 - (none_of(net.p) if fixed else NoneOf.apply(net.p))
        loss = (positive - label).square().sum()
        sgd.zero_grad(set_to_none=True)
        loss.backward()
        sgd.step()
        return loss

    return net, step


def t64(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def truth():
    left = t64([2 * (1 - 0.6), 2 * (1 - 0.9 * 0.7 * 0.5 - 1.0)])
    others = t64([[0.0, 0.8 * 0.6, 0.0], [0.35, 0.45, 0.63]])
    return {"p": left[:, None] * others}
