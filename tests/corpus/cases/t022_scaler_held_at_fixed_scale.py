"""scaler.update(2.0**26) puts the same scale back after every overflow: each step is skipped and the scale never calibrates."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "backward",
    "cause": "loss-scale-overflow",
    "also_causes": ("scaler-misuse", "dtype-overflow"),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 12,
    "fix": "scaler.update() without a scale",
    "twin_skips": (0, 1, 2, 3, 4, 5, 6, 8),
}


class Tagger(nn.Module):
    def __init__(self, vocab=60, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, 20, batch_first=True)
        self.head = nn.Linear(20, 6)

    def forward(self, ids):
        h, _ = self.gru(self.emb(ids))
        return self.head(h)


def build(fixed: bool = False):
    torch.manual_seed(422)
    net = Tagger()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
    gen = torch.Generator().manual_seed(522)

    def step(i):
        ids = torch.randint(0, 60, (4, 9), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(ids)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten() % 6)  # ORIGIN
        scaler.scale(loss).backward()  # ALSO
        scaler.step(opt)
        if fixed:
            scaler.update()
        else:
            scaler.update(2.0**26)  # ALSO
        return loss

    return net, step
