"""Masked language modelling: by chance no token of a short batch was drawn, so every label is -100."""

import torch
from torch import nn

META = {
    "origin_op": "nll_loss_forward",
    "also_ops": ("nll_loss", "cross_entropy_loss"),
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "sum over the labels divided by max(count, 1)",
}


class MaskedLM(nn.Module):
    def __init__(self, vocab=32, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.enc(self.emb(ids)))


def build(fixed: bool = False):
    torch.manual_seed(45)
    net = MaskedLM()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(145)

    def step(i):
        ids = torch.randint(1, 32, (2, 8), generator=gen)
        draw = torch.rand(2, 8, generator=gen) < (0.0 if i == 3 else 0.3)
        labels = ids.masked_fill(~draw, -100)
        logits = net(ids.masked_fill(draw, 0)).flatten(0, 1)
        opt.zero_grad()
        if fixed:
            total = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
            loss = total / max(int(draw.sum()), 1)
        else:
            loss = nn.functional.cross_entropy(logits, labels.flatten())  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
