"""Direct preference optimisation with log(sigmoid(...)) by hand: flipped pairs drift away until the sigmoid is zero and its log infinite."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 5,
    "n_steps": 40,
    "fix": "nn.functional.logsigmoid",
}


class TinyLm(nn.Module):
    def __init__(self, vocab=24, dim=16):
        super().__init__()
        self.emb, self.out = nn.Embedding(vocab, dim), nn.Linear(dim, vocab)

    def logp(self, ids):
        logits = self.out(torch.tanh(self.emb(ids[:, :-1])))
        return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1).sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(457)
    net = TinyLm()
    opt = torch.optim.Adam(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(557)
    chosen = torch.randint(0, 12, (12, 240), generator=gen)
    rejected = torch.randint(12, 24, (12, 240), generator=gen)
    with torch.no_grad():
        base = net.logp(chosen) - net.logp(rejected)

    def step(i):
        good, bad = chosen.clone(), rejected.clone()
        if i % 6 == 5:
            good[3], bad[3] = rejected[3], chosen[3]  # one annotator mixed them up
        sign = torch.ones(12)
        sign[3] = -1.0 if i % 6 == 5 else 1.0
        opt.zero_grad()
        margin = net.logp(good) - net.logp(bad) - sign * base
        if fixed:
            loss = -nn.functional.logsigmoid(0.5 * margin).mean()
        else:
            loss = -torch.log(torch.sigmoid(0.5 * margin)).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
