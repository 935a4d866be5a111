"""A mixture of experts in bfloat16 where one expert gets no token for some steps, on embeddings of which few rows are hit."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "an expert without tokens has no gradient",
}


class Moe(nn.Module):
    def __init__(self, experts=4, dim=12):
        super().__init__()
        self.emb = nn.Embedding(500, dim)
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))
        self.head = nn.Linear(dim, 3)

    def forward(self, ids):
        h = self.emb(ids).mean(1)
        weight, chosen = self.gate(h).softmax(-1).topk(1, -1)
        out = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            rows = (chosen[:, 0] == e).nonzero()[:, 0]
            out = out.index_add(0, rows, (weight[rows] * expert(h[rows])).to(out.dtype))
        return self.head(h + out)


def build(fixed: bool = False):
    torch.manual_seed(1270)
    net = Moe()
    with torch.no_grad():
        net.gate.weight[3] -= 0.0
        net.gate.weight[3] = net.gate.weight[:3].mean(0) * 0.1  # rarely the largest
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1271)

    def step(i):
        ids = torch.randint(0, 40 + 50 * i, (6, 5), generator=gen)
        y = torch.randint(0, 3, (6,), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(ids), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
