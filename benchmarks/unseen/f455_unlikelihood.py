"""Unlikelihood training: a repeated token of probability one has log(1 - 1)."""
import torch
from torch import nn

META = {
    "origin_op": "log", "phase": "forward", "cause": "log-of-zero", "symptom": "loss-inf",
    "first_bad_step": 2, "n_steps": 4, "fix": "clamp 1 - p from below",
}


class LM(nn.Module):
    def __init__(self, vocab=10):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(vocab, 12), nn.GRU(12, 12, batch_first=True), nn.Linear(12, vocab)

    def forward(self, ids, copy_bias):
        return self.out(self.rnn(self.emb(ids))[0]) + copy_bias


def unlikelihood(logits, ids, low):
    probs = logits.softmax(-1)
    seen = torch.zeros_like(probs).scatter_(2, ids.unsqueeze(-1), 1.0)
    one_minus = (1.0 - probs).clamp(min=low)
    return -(torch.log(one_minus) * seen).sum(-1).mean()  # ORIGIN


def build(fixed=False):
    torch.manual_seed(111)
    net = LM()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(112)

    def step(i):
        ids = torch.randint(0, 10, (3, 8), generator=gen)
        copy_bias = torch.zeros(3, 8, 10)
        if i == 2:
            copy_bias[0, 3, ids[0, 3]] = 30.0  # the pointer network copies
        logits = net(ids, copy_bias)
        mle = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss = mle + 0.5 * unlikelihood(logits, ids, 1e-5 if fixed else 0.0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
