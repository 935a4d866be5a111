"""RMSNorm in half: the squares of large activations are inf, rsqrt(inf) is zero, the layer returns zeros and its gain learns nothing."""
import torch
from torch import nn

META = {
    "origin_op": "pow", "phase": "forward", "cause": "dtype-overflow", "also_causes": ("dtype-underflow",), "symptom": "silent-underflow",
    "first_bad_step": 0, "n_steps": 4, "fix": "square in float32",
}


class RMSNorm(nn.Module):
    def __init__(self, dim, wide):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.wide = wide

    def forward(self, x):
        h = x.float() if self.wide else x
        scale = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)  # ORIGIN
        return (h * scale).to(x.dtype) * self.weight.to(x.dtype)


class Net(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.norm = RMSNorm(8, wide)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(x).float())


def build(fixed: bool = False):
    torch.manual_seed(36)
    net = Net(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(37)

    def step(i):
        counts = 300 + 900 * torch.rand(16, 8, generator=gen)  # raw detector counts
        y = counts[:, :3].argmax(1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(counts.half()), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
