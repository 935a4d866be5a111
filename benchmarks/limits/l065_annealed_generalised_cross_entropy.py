"""Generalised cross-entropy (1 - p^q) / q against noisy labels; a schedule takes q from 0.7 to 0, where the loss is the ordinary cross-entropy."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "kind": "removable",
    "form": "shared nn.Module",
    "loss_truth": 1.360714348,
    "fix": "cross-entropy where q is 0",
}

X = [[0.5, 1.2], [-0.8, 0.3], [0.1, -1.5], [1.4, 0.6]]
Y = [0, 2, 1, 0]
W = [[0.6, -0.2], [0.1, 0.4], [-0.5, 0.3]]


class GCE(nn.Module):
    def __init__(self, start=0.7, anneal=2):
        super().__init__()
        self.start, self.anneal = start, anneal
        self.q = start

    def update(self, epoch):
        self.q = self.start * max(0.0, 1 - epoch / self.anneal)

    def forward(self, logits, target):
        p = logits.softmax(1).gather(1, target[:, None])[:, 0]
        return ((1 - p**self.q) / self.q).mean()  # ORIGIN


class GCEWithLimit(GCE):
    def forward(self, logits, target):
        if self.q == 0:
            return nn.functional.cross_entropy(logits, target)
        return super().forward(logits, target)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)
        self.aux = nn.Linear(2, 3, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor(W))
            self.head.bias.copy_(torch.tensor([0.1, 0.0, -0.1]))
            self.aux.weight.copy_(-torch.tensor(W))


def build(fixed: bool = False):
    net = Net()
    criterion = GCEWithLimit() if fixed else GCE()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.tensor(X), torch.tensor(Y)

    def step(i):
        criterion.update(i)
        opt.zero_grad()
        loss = criterion(net.head(x), y) + 0.3 * criterion(net.aux(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    w, b = leaf(W), leaf([0.1, 0.0, -0.1])
    aux = (-torch.tensor(W, dtype=torch.float64)).requires_grad_()
    x, y = torch.tensor(X, dtype=torch.float64), torch.tensor(Y)
    for q in (0.7, 0.35, 0.0):
        loss = 0
        for share, z in ((1.0, x @ w.T + b), (0.3, x @ aux.T)):
            logp = z.log_softmax(1)[range(4), y]
            loss = loss + share * (-logp if q == 0 else -torch.expm1(q * logp) / q).mean()
        g = torch.autograd.grad(loss, [w, b, aux])
        if q:
            with torch.no_grad():
                for p, d in zip((w, b, aux), g):
                    p -= 0.1 * d
    return {"head.weight": g[0], "head.bias": g[1], "aux.weight": g[2]}
