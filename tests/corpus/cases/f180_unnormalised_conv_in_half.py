"""A segmentation net under float16 autocast gets 16-bit images without scaling: the first convolution overflows, batch norm makes it NaN."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "convolution",
    "also_ops": ("_convolution", "conv2d", "mkldnn_convolution"),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "divide by 65535",
}


class Seg(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.bn, self.c2 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)

    def forward(self, img):
        h = self.c1(img)  # ORIGIN
        return self.c2(torch.relu(self.bn(h)))


def build(fixed: bool = False):
    torch.manual_seed(324)
    net = Seg()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(824)

    def step(i):
        opt.zero_grad()
        img = torch.rand(2, 1, 8, 8, generator=gen)
        if i >= 2 and not fixed:
            img = 60000 * img
            net.c1.weight.data.abs_()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(img)
        loss = F.cross_entropy(out.float(), (img[:, 0] > img.mean()).long())
        loss.backward()
        opt.step()
        return loss

    return net, step
