"""The fused Adam with eps=0, copied from a paper's formula: a padding token's row has no gradient, and the kernel computes 0/0."""

import torch
from torch import nn

META = {
    "origin_op": "_fused_adam_",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero", "optimizer-eps-underflow"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps=1e-8",
}


class Encoder(nn.Module):
    def __init__(self, vocab=40, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(dim, 3)

    def forward(self, ids):
        return self.head(self.layer(self.emb(ids))[:, 0])


def build(fixed: bool = False):
    torch.manual_seed(438)
    net = Encoder()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-8 if fixed else 0.0, fused=True)
    gen = torch.Generator().manual_seed(538)

    def step(i):
        ids = torch.randint(1, 40, (8, 6), generator=gen)
        ids[:, 4:] = 0
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), ids[:, 0] % 3)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
