"""A trust-region policy step by conjugate gradients: a batch in which every advantage is zero gives a gradient of zero, and 0/0 for the step length."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "symptom": "param-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "twin_rests": (2,),
    "fix": "skip the step where the gradient is zero",
}


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def conjugate_gradient(product, b, rounds=5):
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), r @ r
    for _ in range(rounds):
        ap = product(p)
        alpha = rr / (p @ ap)  # ORIGIN
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        p, rr = r + new / rr * p, new
    return x


def build(fixed: bool = False):
    torch.manual_seed(627)
    net = nn.Linear(5, 3)
    params = list(net.parameters())
    gen = torch.Generator().manual_seed(727)

    def step(i):
        obs = torch.randn(32, 5, generator=gen)
        act = torch.randint(0, 3, (32, 1), generator=gen)
        advantage = torch.randn(32, generator=gen) * (i != 2)
        logp = torch.log_softmax(net(obs), -1)
        old = logp.detach()
        loss = -((logp - old).gather(1, act).squeeze(1).exp() * advantage).mean()
        g = -flat(torch.autograd.grad(loss, params, retain_graph=True))
        kl = (old.exp() * (old - logp)).sum(-1).mean()
        dkl = flat(torch.autograd.grad(kl, params, create_graph=True))

        def fisher(v):
            return flat(torch.autograd.grad(dkl @ v, params, retain_graph=True)) + 0.1 * v

        if fixed and not g.any():
            return loss
        d = conjugate_gradient(fisher, g)
        d = d * torch.sqrt(2 * 0.01 / (d @ fisher(d)))
        with torch.no_grad():
            for p, move in zip(params, d.split([p.numel() for p in params]), strict=True):
                p.add_(move.view_as(p))
        return loss

    return net, step
