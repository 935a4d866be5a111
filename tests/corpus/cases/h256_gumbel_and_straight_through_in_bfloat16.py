"""A bfloat16 router: Gumbel noise, finfo.min masks used once, -inf capacity masks with at least one expert, sparse experts without tokens."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "every row keeps one expert, empty experts give empty tensors that are never averaged"}


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.gate = nn.Linear(6, 12), nn.Linear(12, 5)
        self.experts = nn.ModuleList(nn.Linear(12, 12) for _ in range(5))
        self.out = nn.Linear(12, 3)

    def forward(self, x, noise, closed):
        h = torch.relu(self.inp(x))
        logits = self.gate(h).masked_fill(closed, torch.finfo(h.dtype).min)
        soft = torch.softmax((logits.float() + noise) / 0.7, -1)
        best = soft.argmax(-1)
        hard = nn.functional.one_hot(best, 5).float() + soft - soft.detach()
        y = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            idx = (best == e).nonzero().squeeze(-1)
            y = y.index_add(0, idx, (hard[idx, e : e + 1] * expert(h[idx]).float()).to(h.dtype))
        ranked = torch.where(closed, torch.full_like(soft, float("-inf")), logits.float().log_softmax(-1))
        z = torch.logsumexp(ranked, -1).pow(2).mean()
        return self.out(h + y).float(), z


def build(fixed: bool = False):
    torch.manual_seed(611)
    net = Router().bfloat16()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(612)

    def step(i):
        x = torch.randn(4 if i == 2 else 30, 6, generator=gen).bfloat16()
        u = torch.rand(len(x), 5, generator=gen).clamp(1e-6, 1 - 1e-6)
        closed = torch.rand(len(x), 5, generator=gen) < 0.4
        closed[:, 1] = False
        y = torch.randint(0, 3, (len(x),), generator=gen)
        opt.zero_grad()
        logits, z = net(x, -torch.log(-torch.log(u)), closed)
        loss = nn.functional.cross_entropy(logits, y) + 1e-3 * z
        loss.backward()
        opt.step()
        return loss

    return net, step
