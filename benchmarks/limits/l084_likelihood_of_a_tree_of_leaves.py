"""Felsenstein's pruning on a tree with 120 leaves (Jukes-Cantor, learned branch lengths): the partial likelihoods, multiplied node by node, underflow and their logarithm is -inf."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "recursion",
    "loss_truth": 3.318609139,
    "fix": "divide each partial likelihood by its maximum and add up the logarithms",
}

LEAVES = [((i * i + i // 3) % 4, (i + i // 5) % 4) for i in range(120)]


def transition(length):
    stay = torch.exp(-4 / 3 * length)
    return torch.eye(4) * stay[..., None, None] + (1 - stay[..., None, None]) / 4


class Clade(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_length = nn.Parameter(torch.tensor([-1.5, -0.5, -2.5]))

    def forward(self, leaves):
        p = transition(self.log_length.exp())
        left = iter(enumerate(leaves))
        _, first = next(left)
        partial = p[0][:, list(first)]
        total = torch.zeros(len(first))
        while (node := next(left, None)) is not None:
            index, states = node
            partial = (p[2] @ partial) * p[index % 2][:, list(states)]
        return total + torch.log(partial.mean(0))  # ORIGIN

    def rescaled(self, leaves):
        p = transition(self.log_length.exp())
        part = p[0][:, list(leaves[0])]
        total = torch.zeros(len(leaves[0]))
        for index, states in enumerate(leaves[1:], 1):
            part = (p[2] @ part) * p[index % 2][:, list(states)]
            top = part.amax(0)
            part, total = part / top, total + top.log()
        return total + torch.log(part.mean(0))


def build(fixed: bool = False):
    clade = Clade()
    likelihood = clade.rescaled if fixed else clade
    opt = torch.optim.Adam(clade.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad()
        loss = -likelihood(LEAVES).sum() / len(LEAVES)
        loss.backward()
        opt.step()
        return loss

    return clade, step


def truth():
    log_length = torch.tensor([-1.5, -0.5, -2.5], dtype=torch.float64, requires_grad=True)
    stay = torch.exp(-4 / 3 * torch.exp(log_length))
    same, other = torch.log(0.25 + 0.75 * stay), torch.log(0.25 - 0.25 * stay)
    table = [torch.where(torch.eye(4, dtype=torch.bool), same[k], other[k]) for k in range(3)]
    loss = 0.0
    for site in range(2):
        lp = table[0][:, LEAVES[0][site]]
        for i in range(1, 120):
            lp = torch.logsumexp(table[2] + lp, 1) + table[i % 2][:, LEAVES[i][site]]
        loss = loss - (torch.logsumexp(lp, 0) - torch.log(torch.tensor(4.0, dtype=torch.float64))) / 120
    return {"log_length": torch.autograd.grad(loss, log_length)[0]}
