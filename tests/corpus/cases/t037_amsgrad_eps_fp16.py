"""The AMSGrad variant keeps the largest second moment, but in float16 that maximum starts at zero too, and so does eps."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("eps-underflow", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps=1e-4",
}


class Experts(nn.Module):
    def __init__(self, dim=10, count=4):
        super().__init__()
        self.gate = nn.Linear(dim, count)
        self.experts = nn.ModuleList([nn.Linear(dim, 2) for _ in range(count)])

    def forward(self, x):
        chosen = self.gate(x).argmax(-1) % 3  # the last expert gets no tokens
        out = torch.stack([expert(x) for expert in self.experts], 1)
        return out[torch.arange(len(x)), chosen] + 0 * self.gate(x).sum()


def build(fixed: bool = False):
    torch.manual_seed(437)
    net = Experts().half()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, amsgrad=True, eps=1e-4 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(537)

    def step(i):
        x = torch.randn(20, 10, generator=gen).half()
        opt.zero_grad()
        loss = nn.functional.huber_loss(net(x).float(), x.float()[:, :2])
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
