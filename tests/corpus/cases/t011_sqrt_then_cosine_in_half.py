"""Root of both operands, then their cosine, under fp16 autocast with a GradScaler: faint spectra underflow to exact zero and have no norm."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("cosine_similarity", "linalg_vector_norm"),
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("dtype-underflow", "div-by-zero", "eps-underflow", "sqrt-at-zero"),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 8,
    "fix": "cast to float32 before the gate, and an epsilon under the root",
}


class Matcher(nn.Module):
    def __init__(self, bins=24):
        super().__init__()
        self.query, self.key = nn.Linear(bins, bins), nn.Linear(bins, bins)

    def forward(self, a, b, wide):
        p, q = torch.sigmoid(self.query(a)), torch.sigmoid(self.key(b))
        if wide:
            p, q = p.float(), q.float()
        p, q = p * a.to(p.dtype), q * b.to(q.dtype)  # ALSO
        eps = 1e-10 if wide else 0.0
        return nn.functional.cosine_similarity(torch.sqrt(p + eps), torch.sqrt(q + eps), dim=-1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(411)
    net = Matcher()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7)
    gen = torch.Generator().manual_seed(511)

    def step(i):
        a = torch.rand(8, 24, generator=gen) + 0.05
        b = (a + 0.05 * torch.rand(8, 24, generator=gen)).roll(i % 2, 0)
        if i >= 4:
            a = torch.cat([a[:6], a[6:] * 1e-9])  # two faint spectra
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            similarity = net(a, b, fixed)
        loss = nn.functional.mse_loss(similarity.float(), torch.full((8,), float(1 - i % 2)))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
