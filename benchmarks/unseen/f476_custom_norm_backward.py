"""A fused normalisation as autograd.Function: its backward divides by the norm it saved."""
import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "backward", "cause": "custom-backward", "symptom": "grad-nan",
    "also_causes": ["div-by-zero", "norm-at-zero"], "first_bad_step": 2, "n_steps": 4, "fix": "clamp the norm in the backward too",
}


class FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low):
        norm = x.norm(dim=-1, keepdim=True)
        y = x / norm.clamp_min(1e-12)
        ctx.save_for_backward(y, norm)
        ctx.low = low
        return y

    @staticmethod
    def backward(ctx, g):
        y, norm = ctx.saved_tensors
        if ctx.low:
            norm = norm.clamp_min(ctx.low)
        return (g - y * (g * y).sum(-1, keepdim=True)) / norm, None  # ALSO


class Net(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.a, self.b, self.low = nn.Linear(5, 12, bias=False), nn.Linear(12, 3), low

    def forward(self, x):
        h = torch.tanh(self.a(x))
        h = FusedNorm.apply(h, self.low)  # ORIGIN
        return self.b(h)


def build(fixed=False):
    torch.manual_seed(153)
    net = Net(1e-3 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(154)

    def step(i):
        x = torch.randn(8, 5, generator=gen)
        if i == 2:
            x[2] = 0
        out = net(x * torch.ones(5, requires_grad=True))
        loss = nn.functional.cross_entropy(out, torch.randint(0, 3, (8,), generator=gen))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
