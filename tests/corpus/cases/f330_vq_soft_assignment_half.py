"""Soft vector quantisation in a .half() model: the squared distance written out as |x|^2 - 2xc + |c|^2 passes 65504 when a loud clip comes.

Source: the expanded distance of VQ-VAE codebooks run in float16 (inf minus finite, then softmax over a row of -inf)
"""
import torch
from torch import nn

META = {
    "origin_op": "sum",
    "also_ops": ("pow",),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "compute the distances in float32",
}


class SoftVQ(nn.Module):
    def __init__(self, codes, wide, dim=24):
        super().__init__()
        self.wide = wide
        self.enc = nn.Linear(16, dim)
        self.codebook = nn.Parameter(torch.randn(codes, dim))
        self.dec = nn.Linear(dim, 16)

    def forward(self, x):
        z = self.enc(x)
        c = self.codebook
        if self.wide:
            z, c = z.float(), c.float()
        zz = (z * z).sum(1, keepdim=True)  # ORIGIN
        dist = zz - 2 * z @ c.t() + (c * c).sum(1)
        assign = torch.softmax(-dist / 8.0, dim=1)
        q = assign @ c
        return self.dec(q.to(x.dtype)), dist.detach().min(1).values.float().mean()


def build(fixed: bool = False):
    torch.manual_seed(330)
    net = SoftVQ(32, fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(331)
    best = [float("inf")]

    def step(i):
        x = torch.randn(12, 16, generator=gen)
        if i == 5:
            x[3] *= 160.0  # a clip that was not normalised
        opt.zero_grad()
        out, commitment = net(x.half())
        loss = nn.functional.smooth_l1_loss(out.float(), x.clamp(-3, 3))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        best[0] = min(best[0], commitment.item())
        return loss

    return net, step
