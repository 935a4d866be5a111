"""A schedule in bfloat16: beta += 1e-3 stops at 0.5, where the step is below half an ulp."""
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "forward",
    "cause": "absorbed-update",
    "symptom": "silent-zero-update",
    "first_bad_step": 2,
    "n_steps": 14,
    "watch": "update:beta",
    "fix": "a Python number",
}


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(8, 6), nn.Linear(3, 8)
        self.register_buffer("beta", torch.tensor(0.496))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(-1).mean()
        self.beta += 1e-3  # ORIGIN
        return (self.dec(mu) - x).pow(2).mean() + self.beta * kl


def build(fixed: bool = False):
    torch.manual_seed(318)
    net = Vae().bfloat16()
    if fixed:
        net.beta = net.beta.float()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(319)

    def step(i):
        loss = net(torch.randn(16, 8, generator=gen).bfloat16()).float()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
