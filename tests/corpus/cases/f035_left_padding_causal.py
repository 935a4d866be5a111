"""Left-padded prompts under a causal mask: the first padding position may look at itself alone, and it is padding."""

import torch
from torch import nn

META = {
    "origin_op": "_softmax",
    "phase": "forward",
    "cause": "softmax-all-masked",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "let every position attend to itself",
}


class Block(nn.Module):
    def __init__(self, dim, heads, see_self):
        super().__init__()
        self.heads, self.see_self = heads, see_self
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, h, pad):
        b, t, d = h.shape
        q, k, v = self.qkv(self.norm(h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1) | pad[:, None, None, :]
        if self.see_self:
            hidden = hidden & ~torch.eye(t, dtype=torch.bool)
        score = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        weight = score.softmax(-1)  # ORIGIN
        return h + self.out((weight @ v).transpose(1, 2).reshape(b, t, d))


class TinyLM(nn.Module):
    def __init__(self, see_self, vocab=24, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList([Block(dim, 2, see_self) for _ in range(2)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, pad):
        h = self.emb(ids)
        for block in self.blocks:
            h = block(h, pad)
        return self.head(h)


def build(fixed: bool = False):
    torch.manual_seed(35)
    net = TinyLM(fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(135)

    def step(i):
        ids = torch.randint(1, 24, (4, 9), generator=gen)
        if i >= 3:
            ids[1, :3] = 0  # from here on prompts of unequal length share a batch
        pad = ids == 0
        opt.zero_grad()
        logits = net(ids, pad)[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        opt.step()
        return loss

    return net, step
