"""Two losses go backward one after the other, only the small one through the scaler; scaler.step divides both by the scale."""

import torch
from torch import nn

META = {
    "origin_op": "mean",
    "also_ops": ("mse_loss", "add", "div", "_foreach_mul_"),
    "phase": "backward",
    "also_phase": "forward",
    "cause": "scaler-misuse",
    "symptom": "silent-scaler-misuse",
    "first_bad_step": 0,
    "n_steps": 6,
    "fix": "scale both losses",
}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 24)
        self.value = nn.Linear(24, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return h, self.value(h)


def build(fixed: bool = False):
    torch.manual_seed(468)
    net = TwoHeads()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    gen = torch.Generator().manual_seed(568)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            h, value = net(x)
        sparsity = 1e-5 * h.float().abs().mean()
        loss = (value.float() - x[:, :1]).square().mean()
        scaler.scale(sparsity).backward(retain_graph=True)
        if fixed:
            scaler.scale(loss).backward()
        else:
            loss.backward()  # ORIGIN
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
