"""Face embeddings multiplied by the reciprocal of their norm in half: of raw pixels the norm is inf, and every embedding becomes zero."""

import torch
from torch import nn

META = {
    "origin_op": "linalg_vector_norm",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "silent-underflow",
    "first_bad_step": 2,
    "n_steps": 5,
    "watch": "grad:body.weight",
    "fix": "the norm in float32",
}


class Face(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.wide = wide
        self.body = nn.Linear(64, 64, bias=False)
        self.centres = nn.Parameter(torch.randn(5, 64))

    def forward(self, x):
        h = self.body(x)
        if self.wide:
            h = h.float()
        h = h * torch.reciprocal(h.norm(dim=-1, keepdim=True))  # ORIGIN
        return (h.to(x.dtype) @ nn.functional.normalize(self.centres.float(), dim=-1).to(x.dtype).t()) * 10


def build(fixed: bool = False):
    torch.manual_seed(1)
    net = Face(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(2)

    def step(i):
        x = (2 * torch.rand(8, 64, generator=gen) - 1) * (1.0 if i < 2 else 45000.0)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.half()).float(), torch.randint(0, 5, (8,), generator=gen))
        loss.backward()
        opt.step()
        return loss

    return net, step
