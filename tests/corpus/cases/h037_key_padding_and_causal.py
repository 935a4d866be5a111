"""Every query of the decoder sees at least the first key."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "every query of the decoder sees at least the first key",
}


class Dec(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 20)

    def forward(self, ids):
        causal = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        pad = torch.zeros(ids.shape).masked_fill(ids == 0, -torch.inf)
        return self.out(self.enc(self.emb(ids), mask=causal, src_key_padding_mask=pad))


def build(fixed: bool = False):
    torch.manual_seed(301)
    net = Dec()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(801)

    def step(i):
        opt.zero_grad()
        ids = torch.randint(1, 20, (4, 9), generator=gen)
        ids[1, 5:] = 0
        out = net(ids[:, :-1])
        loss = F.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        opt.step()
        return loss

    return net, step
