"""Language-model loss summed and divided by the number of unmasked tokens: one packed batch is a prompt throughout, so 0/0."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("empty-reduction",),
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "divide by n_tokens.clamp_min(1)",
}


class TinyLm(nn.Module):
    def __init__(self, vocab=40, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


def build(fixed: bool = False):
    torch.manual_seed(451)
    net = TinyLm()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(551)

    def step(i):
        ids = torch.randint(0, 40, (4, 9), generator=gen)
        answer_starts = torch.randint(4, 9, (4, 1), generator=gen)
        if i == 5:
            answer_starts.fill_(9)  # the answers were cut off
        labels = ids[:, 1:].masked_fill(torch.arange(1, 9) < answer_starts, -100)
        logits = net(ids[:, :-1])
        total = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        n_tokens = (labels != -100).sum()
        opt.zero_grad()
        loss = total / n_tokens.clamp_min(1 if fixed else 0)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
