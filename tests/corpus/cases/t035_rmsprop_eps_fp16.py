"""RMSprop on float16 weights: the square of a small gradient underflows, the default eps is zero as well, and the step is infinite."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("eps-underflow", "dtype-underflow", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps=1e-3, or float32 master weights",
}


class Rater(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 16, 5, padding=2)
        self.score = nn.Linear(16, 1)

    def forward(self, x):
        return self.score(torch.tanh(self.conv(x)).mean(-1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(435)
    net = Rater().half()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4, eps=1e-3 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(535)

    def step(i):
        x = torch.randn(16, 3, 20, generator=gen).half()
        rating = 0.5 + 0.1 * x.float().mean((1, 2))
        opt.zero_grad()
        loss = 1e-3 * nn.functional.mse_loss(net(x).float(), rating)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
