"""Gradient accumulation that divides the summed gradients by the number of tokens; one group of batches is all padding."""

import torch
from torch import nn

META = {
    "origin_op": "div_",
    "also_ops": ("div", "_foreach_div_"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("empty-reduction",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "divide by at least one token",
}
PAD = 0


class Model(nn.Module):
    def __init__(self, vocab=20, dim=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.mix = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(torch.tanh(self.mix(self.emb(ids))))


def build(fixed: bool = False):
    torch.manual_seed(466)
    net = Model()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(566)

    def step(i):
        opt.zero_grad()
        tokens = torch.zeros(())
        total = torch.zeros(())
        for _ in range(4):
            ids = torch.randint(1, 20, (3, 7), generator=gen)
            if i == 3:
                ids[:] = PAD
            target = ids.roll(-1, 1)
            loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
            loss.backward()
            tokens += (target != PAD).sum()
            total += loss.detach()
        for p in net.parameters():
            p.grad.div_(tokens.clamp_min(1) if fixed else tokens)  # ORIGIN
        opt.step()
        return total

    return net, step
