"""Two losses, two optimizers, one GradScaler; the first optimizer's gradients overflow while it calibrates, the other's do not."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 9, "skipped_steps": (0, 6), "why": "the scaler skips one optimizer, then both go"}


def build(fixed: bool = False):
    torch.manual_seed(118)
    a, b = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    opt_a, opt_b = torch.optim.SGD(a.parameters(), lr=0.05), torch.optim.Adam(b.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19)
    gen = torch.Generator().manual_seed(119)

    def step(i):
        x = torch.randn(24, 6, generator=gen)
        opt_a.zero_grad()
        opt_b.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out_a, out_b = a(x), b(x)
        loss_a = nn.functional.cross_entropy(out_a.float(), x[:, :3].argmax(1))
        loss_b = 1e-2 * nn.functional.mse_loss(out_b.float(), x[:, :1])
        scaler.scale(loss_a).backward(retain_graph=True)
        scaler.scale(loss_b).backward()
        scaler.step(opt_a)
        scaler.step(opt_b)
        scaler.update()
        return loss_a

    return nn.ModuleList([a, b]), step
