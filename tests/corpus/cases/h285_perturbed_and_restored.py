"""Sharpness-aware minimisation: weights are perturbed and copied back exactly before the step."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "what is copied back undoes a perturbation, not an update",
}


def build(fixed: bool = False):
    torch.manual_seed(336)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).bfloat16()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(337)

    def step(i):
        x = torch.randn(32, 8, generator=gen).bfloat16()
        y = x[:, :4].argmax(1)
        opt.zero_grad()
        nn.functional.cross_entropy(net(x).float(), y).backward()
        with torch.no_grad():
            old = [p.clone() for p in net.parameters()]
            norm = torch.stack([p.grad.float().norm() for p in net.parameters()]).norm()
            for p in net.parameters():
                p.add_((0.05 * p.grad.float() / (norm + 1e-12)).to(p.dtype))
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        with torch.no_grad():
            for p, o in zip(net.parameters(), old, strict=True):
                p.copy_(o)
        opt.step()
        return loss

    return net, step
