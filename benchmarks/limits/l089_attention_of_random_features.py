"""Performer attention with positive random features exp(w.x - |x|^2 / 2): all keys of a sequence are long, every feature is 0 in float32 and so is the normaliser.

Source: well-known fault (random-feature attention without a stabiliser)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "helper",
    "loss_truth": 0.1242798927,
    "fix": "take the greatest exponent off the keys' features, it cancels",
}

X = [[[0.5, -0.3], [0.8, 0.6], [-0.4, 0.9]], [[8.0, -6.5], [7.5, -7.0], [8.5, -6.0]]]
WQ, WK, WV = [[0.03, 0.02], [-0.01, 0.04]], [[1.2, -0.6], [-0.5, 1.1]], [[0.2, 0.1], [-0.1, 0.3]]
FEATURES = [[0.9, -0.4], [-0.3, 1.2], [0.6, 0.5], [-1.1, -0.2]]
Y = [[[0.1, 0.0], [0.2, 0.1], [0.0, 0.3]], [[1.0, -2.0], [1.5, -2.5], [0.8, -2.2]]]


def features(x, w, stabilise=False):
    exponent = x @ w.T - 0.5 * x.pow(2).sum(-1, keepdim=True)
    if stabilise:
        exponent = exponent - exponent.detach().amax((-2, -1), keepdim=True)
    return torch.exp(exponent) / len(w) ** 0.5


class Performer(nn.Module):
    def __init__(self, stabilise):
        super().__init__()
        self.stabilise = stabilise
        self.q, self.k, self.v = (nn.Linear(2, 2, bias=False) for _ in range(3))
        self.register_buffer("w", torch.tensor(FEATURES))
        with torch.no_grad():
            for layer, weight in zip((self.q, self.k, self.v), (WQ, WK, WV)):
                layer.weight.copy_(torch.tensor(weight))

    def forward(self, x):
        q, k = features(self.q(x), self.w, self.stabilise), features(self.k(x), self.w, self.stabilise)
        context = torch.einsum("blm,bld->bmd", k, self.v(x))
        total = torch.einsum("blm,bm->bl", q, k.sum(1))
        return torch.einsum("blm,bmd->bld", q, context) / total[..., None]  # ORIGIN


def build(fixed: bool = False):
    net = Performer(fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    x, y = torch.tensor(X), torch.tensor(Y)

    def step(i):
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    wq, wk, wv = leaf(WQ), leaf(WK), leaf(WV)
    x, y, w = (torch.tensor(v, dtype=torch.float64) for v in (X, Y, FEATURES))
    q, k, v = x @ wq.T, x @ wk.T, x @ wv.T
    # the log of the kernel between query i and key j, then an ordinary softmax over the keys
    both = (q @ w.T)[:, :, None] + (k @ w.T - 0.5 * k.pow(2).sum(-1, keepdim=True))[:, None]
    out = torch.softmax(torch.logsumexp(both, -1), -1) @ v
    g = torch.autograd.grad((out - y).pow(2).mean(), [wq, wk, wv])
    return {"q.weight": g[0], "k.weight": g[1], "v.weight": g[2]}
