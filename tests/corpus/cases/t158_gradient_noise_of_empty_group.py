"""Noise in proportion to the mean gradient of each group of layers; a group whose layers are all frozen has no gradients to take the mean of."""

import torch
from torch import nn

META = {
    "origin_op": "mean",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "empty-reduction",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "leave a group without gradients out",
}


def build(fixed: bool = False):
    torch.manual_seed(658)
    net = nn.ModuleDict({"body": nn.Linear(6, 12), "head": nn.Linear(12, 2)})
    groups = [list(net["body"].parameters()), list(net["head"].parameters())]
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(758)

    def add_noise():
        sizes = []
        for group in groups:
            grads = [p.grad.abs().flatten() for p in group if p.grad is not None]
            if fixed and not grads:
                continue
            flat = torch.cat(grads) if grads else torch.zeros(0)
            sizes.append(flat.mean())  # ORIGIN
        scale = torch.stack(sizes).mean()
        for p in net.parameters():
            if p.grad is not None:
                p.grad += 0.1 * scale * torch.randn(p.shape, generator=gen)

    def step(i):
        net["body"].requires_grad_(i != 2)
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net["head"](torch.tanh(net["body"](x))), (x[:, 0] > 0).long())
        loss.backward()
        add_noise()
        opt.step()
        return loss

    return net, step
