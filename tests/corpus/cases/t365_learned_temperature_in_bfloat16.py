"""The learned temperature of a contrastive model is one bfloat16 number near 2.66: its updates of 1e-4 are rounded away."""
import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-zero-update",
    "first_bad_step": 0,
    "n_steps": 18,
    "watch": "update:logit_scale",
    "fix": "keep the temperature in float32",
}


class Clip(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.img, self.txt = nn.Linear(12, 8), nn.Linear(10, 8)
        self.logit_scale = nn.Parameter(torch.tensor(2.6593, dtype=dtype))

    def forward(self, a, b):
        a = nn.functional.normalize(self.img(a), dim=-1)
        b = nn.functional.normalize(self.txt(b), dim=-1)
        return self.logit_scale.float().exp() * a @ b.T


def build(fixed: bool = False):
    torch.manual_seed(32)
    net = Clip(torch.float32 if fixed else torch.bfloat16)
    opt = torch.optim.Adam(net.parameters(), lr=5e-4)
    gen = torch.Generator().manual_seed(33)
    mix = torch.randn(12, 10, generator=gen)

    def step(i):
        a = torch.randn(16, 12, generator=gen)
        logits = net(a, a @ mix / 3)
        labels = torch.arange(16)
        loss = (nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.T, labels)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
