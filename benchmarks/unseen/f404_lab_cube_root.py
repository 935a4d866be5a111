"""CIE Lab: the cube root has an infinite slope at black, and where() multiplies it by zero."""
import torch
from torch import nn

META = {
    "origin_op": "pow", "phase": "backward", "cause": "where-grad-trap", "symptom": "grad-nan",
    "also_causes": ["pow-fraction-at-zero"], "first_bad_step": 2, "n_steps": 4, "fix": "clamp the argument of the cube root at the threshold",
}

XYZ = torch.tensor([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = torch.tensor([0.9505, 1.0, 1.089])
DELTA = 6 / 29

f_plain = lambda t: torch.where(t > DELTA**3, t ** (1 / 3), t / (3 * DELTA**2) + 4 / 29)  # ORIGIN  # noqa: E731
f_safe = lambda t: torch.where(t > DELTA**3, t.clamp_min(DELTA**3) ** (1 / 3), t / (3 * DELTA**2) + 4 / 29)  # noqa: E731


def lab(rgb, f):
    xyz = torch.einsum("ij,bjhw->bihw", XYZ, rgb) / WHITE.view(3, 1, 1)
    x, y, z = f(xyz).unbind(1)
    return torch.stack([1.16 * y - 0.16, 5 * (x - y), 2 * (y - z)], 1)


def build(fixed=False):
    torch.manual_seed(9)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(8, 3, 3, padding=1, bias=False))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(10)
    f = f_safe if fixed else f_plain

    def step(i):
        photo = torch.rand(2, 3, 10, 10, generator=gen) * 0.9 + 0.05
        if i >= 2:
            photo[1, :, 4:] = 0
        out = photo * torch.exp(0.1 * net(photo))
        loss = nn.functional.l1_loss(lab(out, f), lab(photo.sqrt(), f_safe))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
