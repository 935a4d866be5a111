"""An elementwise signed root as a custom Function: its hand-written derivative 1 / (2 sqrt|x|) is infinite at zero."""

import torch
from torch import nn

META = {
    "origin_op": "rsqrt",
    "also_ops": ("SignedRoot", "div", "mul"),
    "phase": "backward",
    "cause": "custom-backward",
    "also_causes": ("sqrt-at-zero", "pow-fraction-at-zero", "div-by-zero"),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "bound the derivative by an epsilon",
}


class SignedRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x.sign() * x.abs().sqrt()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 0.5 * torch.rsqrt(x.abs() + ctx.eps), None  # ALSO


class Bilinear(nn.Module):
    """Bilinear pooling of two feature streams with the usual signed root and l2 normalisation."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.a = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.b = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.head = nn.Linear(16, 3)

    def forward(self, x, y):
        outer = torch.einsum("bi,bj->bij", self.a(x), self.b(y)).flatten(1)
        outer = outer * y.abs().amax(1, keepdim=True)
        rooted = SignedRoot.apply(outer, self.eps)  # ORIGIN
        return self.head(nn.functional.normalize(rooted, dim=1))


def build(fixed: bool = False):
    torch.manual_seed(56)
    net = Bilinear(1e-4 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(156)

    def step(i):
        x, y = torch.randn(8, 6, generator=gen), torch.randn(8, 6, generator=gen)
        if i == 3:
            y[5] = 0.0  # the second modality is missing
        label = torch.randint(0, 3, (8,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, y), label)
        loss.backward()
        opt.step()
        return loss

    return net, step
