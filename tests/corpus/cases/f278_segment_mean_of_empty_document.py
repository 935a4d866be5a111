"""torch.segment_reduce averages the tokens of each document; one document lost all its tokens in the filter."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "segment_reduce",
    "phase": "forward",
    "cause": "empty-reduction",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "sum, and divide by at least one",
}


class BagOfTokens(nn.Module):
    def __init__(self, keep_empty_out):
        super().__init__()
        self.table, self.cls = nn.Embedding(30, 8), nn.Linear(8, 3)
        self.keep_empty_out = keep_empty_out

    def forward(self, tokens, lengths):
        kw = {"initial": 0.0} if self.keep_empty_out else {}
        reduce = "sum" if self.keep_empty_out else "mean"
        doc = torch.segment_reduce(self.table(tokens), reduce, lengths=lengths, **kw)  # ORIGIN
        if self.keep_empty_out:
            doc = doc / lengths.clamp(min=1)[:, None]
        return self.cls(doc)


def build(fixed: bool = False):
    torch.manual_seed(698)
    net = BagOfTokens(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(703)

    def step(i):
        opt.zero_grad()
        lengths = torch.tensor([3, 5, 2, 4]) if i != 2 else torch.tensor([3, 5, 0, 4])
        tokens = torch.randint(0, 30, (int(lengths.sum()),), generator=gen)
        loss = F.cross_entropy(net(tokens, lengths), torch.tensor([0, 1, 2, 1]))
        loss.backward()
        opt.step()
        return loss

    return net, step
