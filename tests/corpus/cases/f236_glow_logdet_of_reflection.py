"""An invertible 1x1 convolution adds torch.logdet of its weight; the determinant became negative."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "also_ops": ("logdet", "scalar_tensor", "where", "linalg_slogdet", "_linalg_slogdet"),
    "phase": "forward",
    "cause": "log-of-negative",
    "also_causes": ("degenerate-matrix",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "slogdet",
}


class InvConv(nn.Module):
    def __init__(self, channels, signed):
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.signed = signed

    def forward(self, z):
        area = z.shape[2] * z.shape[3]
        logdet = torch.linalg.slogdet(self.weight)[1] if self.signed else torch.logdet(self.weight)  # ORIGIN
        return F.conv2d(z, self.weight[:, :, None, None]), area * logdet


def build(fixed: bool = False):
    torch.manual_seed(1040)
    net = InvConv(3, fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1045)
    with torch.no_grad():
        if torch.det(net.weight) < 0:
            net.weight[0].neg_()

    def step(i):
        opt.zero_grad()
        if i == 2:
            with torch.no_grad():
                net.weight[0].neg_()
        z, logdet = net(torch.randn(4, 3, 4, 4, generator=gen))
        loss = 0.5 * z.square().sum((1, 2, 3)).mean() - logdet
        loss.backward()
        opt.step()
        return loss

    return net, step
