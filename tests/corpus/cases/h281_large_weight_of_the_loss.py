"""A large constant weight on the loss (sum over pixels, beta = 512) with a learning rate chosen for it: no loss scale, nothing to divide out."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "a factor on the loss is no loss scale where the optimizer is used to it",
}


def build(fixed: bool = False):
    torch.manual_seed(226)
    net = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 16))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(227)

    def step(i):
        x = torch.randn(32, 16, generator=gen)
        recon = nn.functional.mse_loss(net(x), x)
        loss = 512.0 * recon
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
