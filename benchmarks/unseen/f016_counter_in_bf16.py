"""The step counter of a warm-up is a bfloat16 buffer of the converted model: at 256 plus one is 256, and the ramp never ends."""
import torch
from torch import nn

META = {
    "origin_op": "add_", "phase": "forward", "also_phase": "other", "cause": "absorbed-update", "symptom": "silent-underflow",
    "first_bad_step": 6, "n_steps": 12, "fix": "an integer counter",
}


class Ramp(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(8, 8), nn.Linear(4, 8)
        self.register_buffer("seen", torch.tensor(250.0))

    def forward(self, x):
        self.seen += 1  # ORIGIN
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.exp(0.5 * logvar) * 0.3
        beta = torch.clamp(self.seen / 1000, max=1.0)
        kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(-1).mean()
        return (self.dec(z) - x).pow(2).mean() + beta * kl


def build(fixed: bool = False):
    torch.manual_seed(30)
    net = Ramp().to(torch.bfloat16)
    if fixed:
        net.seen = net.seen.to(torch.float32)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(31)

    def step(i):
        x = torch.randn(16, 8, generator=gen).bfloat16()
        opt.zero_grad()
        loss = net(x).float()
        loss.backward()
        opt.step()
        return loss

    return net, step
