"""fp16 autocast without a scaler on a small net: part of the gradients are subnormal, some zero, every parameter learns."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 6}


def build(fixed: bool = False):
    torch.manual_seed(216)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 3, padding=1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(217)

    def step(i):
        clean = torch.rand(2, 1, 12, 12, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(clean + 0.1 * torch.randn(clean.shape, generator=gen))
        loss = nn.functional.mse_loss(out.float(), clean) * 0.05
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
