"""Multiple-negatives ranking loss, cosine times 20: a document of padding only is pooled to the zero vector and divided by its norm."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 6,
    "n_steps": 9,
    "fix": "nn.functional.normalize, whose eps guards the norm",
}


class BiEncoder(nn.Module):
    def __init__(self, vocab=120, dim=24):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, mode="sum", padding_idx=0)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, ids, safe):
        v = self.proj(self.emb(ids))
        if safe:
            return nn.functional.normalize(v, dim=-1)
        return v / v.norm(dim=-1, keepdim=True)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(413)
    net = BiEncoder()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(513)

    def step(i):
        queries = torch.randint(1, 120, (12, 5), generator=gen)
        documents = torch.cat([queries, torch.randint(1, 120, (12, 5), generator=gen)], 1)
        if i == 6:
            documents[8] = 0  # all tokens were filtered out
        opt.zero_grad()
        scores = 20.0 * net(queries, fixed) @ net(documents, fixed).T
        loss = nn.functional.cross_entropy(scores, torch.arange(12))
        loss.backward()
        opt.step()
        return loss

    return net, step
