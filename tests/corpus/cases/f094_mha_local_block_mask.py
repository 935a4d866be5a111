"""nn.MultiheadAttention over graph nodes with a float mask of -inf for non-neighbours; one node has no neighbour at all."""

import torch
from torch import nn

META = {
    "origin_op": "_softmax",
    "also_ops": ("softmax",),
    "phase": "forward",
    "cause": "softmax-all-masked",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "let each node attend to itself",
}


class GraphTransformer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.inp, self.head = nn.Linear(5, dim), nn.Linear(dim, 3)
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2)])
        self.layers = nn.ModuleList([nn.MultiheadAttention(dim, 2, batch_first=True) for _ in range(2)])

    def forward(self, x, adj):
        mask = torch.zeros_like(adj).masked_fill(adj == 0, float("-inf"))
        h = self.inp(x).unsqueeze(0)
        for norm, attention in zip(self.norms, self.layers, strict=True):
            z = norm(h)
            h = h + attention(z, z, z, attn_mask=mask)[0]  # ORIGIN
        return self.head(h.squeeze(0))


def build(fixed: bool = False):
    torch.manual_seed(94)
    net = GraphTransformer()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(194)
    ring = torch.eye(12).roll(1, 0) + torch.eye(12).roll(-1, 0)

    def step(i):
        adj = torch.maximum(ring, (torch.rand(12, 12, generator=gen) < 0.2).float())
        if i == 3:
            adj[8] = 0.0
        if fixed:
            adj = torch.maximum(adj, torch.eye(12))
        x, y = torch.randn(12, 5, generator=gen), torch.randint(0, 3, (12,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, adj), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
