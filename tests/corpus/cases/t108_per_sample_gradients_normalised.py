"""Private training that normalises each sample's gradient (torch.func): a padded sample of weight zero has a gradient of norm zero."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

META = {
    "origin_op": "div",
    "also_ops": ("reciprocal", "mul"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero", "zero-times-inf"),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "norm + 1e-6",
}


def build(fixed: bool = False):
    torch.manual_seed(608)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    gen = torch.Generator().manual_seed(708)
    eps = 1e-6 if fixed else 0.0

    def sample_loss(params, x, y, weight):
        out = functional_call(net, params, (x,))
        return weight * (out - y).square().mean()

    def step(i):
        n = 12 if i < 4 else 10
        x = torch.zeros(12, 5)
        x[:n] = torch.randn(n, 5, generator=gen)
        y = x.sum(1, keepdim=True)
        weight = (torch.arange(12) < n).float()
        params = {k: p.detach() for k, p in net.named_parameters()}
        grads = vmap(grad(sample_loss), in_dims=(None, 0, 0, 0))(params, x, y, weight)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        with torch.no_grad():
            before = (weight * (net(x) - y).square().squeeze(1)).mean()
        opt.zero_grad()
        for name, p in net.named_parameters():
            g = grads[name]
            unit = g / (norms + eps).view(-1, *[1] * (g.dim() - 1))  # ORIGIN
            p.grad = unit.mean(0)
        opt.step()
        return before

    return net, step
