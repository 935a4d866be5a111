"""A Markov chain's likelihood as a product of three hundred probabilities is zero in float32, and so is everything after it."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("prod",),
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("dtype-underflow",),
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "sum of log-probabilities",
}


class MarkovLM(nn.Module):
    def __init__(self, vocab=12, dim=10):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.net = nn.Sequential(nn.Linear(dim, 24), nn.ReLU(), nn.Linear(24, vocab))

    def forward(self, ids):
        return self.net(self.emb(ids[:, :-1]))


def nll(logits, ids, in_logs):
    logp = torch.log_softmax(logits, -1).gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    if in_logs:
        return -logp.sum(1).mean()
    likelihood = logp.exp().prod(1)  # ALSO
    return -torch.log(likelihood).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(61)
    net = MarkovLM()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(161)
    lengths = [12, 16, 24, 300, 20, 12]

    def step(i):
        ids = torch.randint(0, 12, (4, lengths[i]), generator=gen)
        opt.zero_grad()
        loss = nll(net(ids), ids, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
