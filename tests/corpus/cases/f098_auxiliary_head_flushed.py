"""A half-precision model with an auxiliary loss weighted 1e-7: the auxiliary gradient is zero once it is cast back to half."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "backward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 4,
    "watch": "grad:aux.weight",
    "fix": "weigh the auxiliary loss more, or scale the losses",
}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 12, 3, padding=1), nn.ReLU(), nn.Conv1d(12, 12, 3, padding=1), nn.ReLU())
        self.main, self.aux = nn.Conv1d(12, 1, 1), nn.Conv1d(12, 2, 1)

    def forward(self, x):
        h = self.body(x)
        return self.main(h), self.aux(h)


def build(fixed: bool = False):
    torch.manual_seed(98)
    net = TwoHeads().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(198)

    def step(i):
        x = torch.randn(4, 2, 32, generator=gen)
        main, aux = net(x.half())
        opt.zero_grad()
        loss = nn.functional.mse_loss(main.float(), x.mean(1, keepdim=True))
        aux = aux.float()  # ORIGIN
        loss = loss + (1e-1 if fixed else 1e-7) * nn.functional.mse_loss(aux, x)
        loss.backward()
        opt.step()
        return loss

    return net, step
