"""Functional GCN, no module: D^-1/2 A D^-1/2 without self-loops, and a node of degree zero."""

from itertools import pairwise

import torch

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-fraction-at-zero",
    "also_causes": ("div-by-zero", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add self-loops before normalising",
}


def propagate(adj, self_loops):
    if self_loops:
        adj = adj + torch.eye(adj.shape[0])
    inv_root = adj.sum(1).pow(-0.5)  # ORIGIN
    return inv_root.unsqueeze(1) * adj * inv_root.unsqueeze(0)


def gcn(weights, x, adj, self_loops):
    a = propagate(adj, self_loops)
    for w in weights[:-1]:
        x = torch.relu(a @ (x @ w))
    return a @ (x @ weights[-1])


def build(fixed: bool = False):
    gen = torch.Generator().manual_seed(119)
    sizes = [6, 16, 16, 3]
    weights = [(torch.randn(m, n, generator=gen) / m**0.5).requires_grad_() for m, n in pairwise(sizes)]
    opt = torch.optim.Adam(weights, lr=5e-3)

    def step(i):
        upper = (torch.rand(14, 14, generator=gen) < 0.5).float().triu(1)
        adj = upper + upper.t()
        if i == 2:
            adj[4] = adj[:, 4] = 0.0
        x = torch.randn(14, 6, generator=gen)
        y = torch.randint(0, 3, (14,), generator=gen)
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(gcn(weights, x, adj, fixed), y)
        loss.backward()
        opt.step()
        return loss

    step.parameters = {f"w{k}": w for k, w in enumerate(weights)}
    return None, step
