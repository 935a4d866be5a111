"""Mixed precision with clipping in the wrong order: the scaled gradient is clipped to norm one, then divided by the loss scale."""

import torch
from torch import nn

META = {
    "origin_op": "_foreach_mul_",
    "also_ops": ("clip_grad_norm_", "mul_"),
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "symptom": "silent-scaler-misuse",
    "first_bad_step": 0,
    "n_steps": 6,
    "watch": "progress",
    "fix": "scaler.unscale_(opt) before clip_grad_norm_",
}


class TextCnn(nn.Module):
    def __init__(self, vocab=80, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, 24, 3, padding=1)
        self.head = nn.Linear(24, 4)

    def forward(self, ids):
        h = torch.relu(self.conv(self.emb(ids).transpose(1, 2)))
        return self.head(h.amax(-1))


def build(fixed: bool = False):
    torch.manual_seed(403)
    net = TextCnn()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    gen = torch.Generator().manual_seed(503)

    def step(i):
        ids = torch.randint(0, 80, (16, 12), generator=gen)
        y = ids[:, 0] % 4
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(ids)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ORIGIN
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
