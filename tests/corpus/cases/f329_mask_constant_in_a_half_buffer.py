"""A mask constant kept as a buffer: model.half() turns -1e9 into -inf, and zero times it is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "init",
    "cause": "poisoned-buffer",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "-1e4, or masked_fill with the dtype's minimum",
    "also_phase": "forward",
    "also_causes": ["mask-overflow", "zero-times-inf", "dtype-overflow"],
    "also_ops": ["to_copy"],
}


class Attention(nn.Module):
    def __init__(self, dim, low):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.register_buffer("low", torch.tensor(low))

    def forward(self, x, keep):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 4.0
        bias = (1.0 - keep.to(x.dtype)) * self.low  # ORIGIN
        return torch.softmax(scores + bias[:, None], -1) @ self.v(x)


class Net(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.att, self.out = Attention(8, low), nn.Linear(8, 2)

    def forward(self, x, keep):
        return self.out(self.att(x, keep).mean(1)).float()


def build(fixed: bool = False):
    torch.manual_seed(1081)
    net = Net(-1e4 if fixed else -1e9).half()  # ALSO
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(1082)

    def step(i):
        x = torch.randn(4, 6, 8, generator=gen).half()
        keep = torch.arange(6)[None] < torch.randint(2, 7, (4, 1), generator=gen)
        y = torch.randint(0, 2, (4,), generator=gen)
        loss = nn.functional.cross_entropy(net(x, keep), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
