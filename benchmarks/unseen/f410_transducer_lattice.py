"""An RNN-T lattice in log space: cells that cannot be reached hold -inf on both arms, and the difference of two -inf is NaN."""
import torch
from torch import nn

META = {
    "origin_op": "sub", "phase": "forward", "cause": "inf-minus-inf", "symptom": "loss-nan",
    "also_causes": ["softmax-all-masked", "infeasible-likelihood"], "first_bad_step": 0, "n_steps": 2,
    "fix": "a large negative number instead of -inf at the border",
}


def log_add(a, b):
    top = torch.maximum(a, b)
    return top + torch.log1p(torch.exp(-(a - b).abs()))  # ORIGIN


def alphas(blank, emit, floor):
    """Forward variable of a (T, U) lattice, blank (T, U+1), emit (T, U)."""
    T, U = emit.shape
    outside = torch.full((1,), floor)
    row = torch.cat([torch.zeros(1), outside.expand(U)])
    for t in range(T):
        stay = row + blank[t] if t else row
        cells = [stay[:1]]
        for u in range(1, U + 1):
            up = cells[-1] + emit[t, u - 1 : u] if t >= 1 else outside
            cells.append(log_add(stay[u : u + 1], up))
        row = torch.cat(cells)
    return row[-1] + blank[-1, -1]


class Joint(nn.Module):
    def __init__(self, vocab=6):
        super().__init__()
        self.enc, self.pred, self.out = nn.Linear(5, 12), nn.Embedding(vocab, 12), nn.Linear(12, vocab)

    def forward(self, x, y):
        g = self.pred(torch.cat([torch.zeros(1, dtype=torch.long), y]))
        return self.out(torch.tanh(self.enc(x)[:, None] + g[None])).log_softmax(-1)


def build(fixed=False):
    torch.manual_seed(21)
    net = Joint()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(22)

    def step(i):
        x = torch.randn(6, 5, generator=gen)
        y = torch.randint(1, 6, (3,), generator=gen)
        logp = net(x, y)
        emit = logp[:, :-1].gather(2, y.view(1, -1, 1).expand(6, -1, 1)).squeeze(-1)
        loss = -alphas(logp[..., 0], emit, -1e4 if fixed else float("-inf"))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
