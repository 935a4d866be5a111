"""LAMB whose trust ratio is guarded for zero weights but not for zero updates: a task without samples gives inf times zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("mul",),
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero", "norm-at-zero", "zero-times-inf"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "a ratio of one where the update's norm is zero, too",
}


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr, both):
        super().__init__(params, {"lr": lr, "both": both})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"], state["t"] = torch.zeros_like(p), torch.zeros_like(p), 0
                state["t"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.99 ** state["t"])
                update = m / (v.sqrt() + 1e-6)
                size, move = p.norm(), update.norm()
                sound = size > 0 if not group["both"] else (size > 0) & (move > 0)
                ratio = torch.where(sound, size / move, torch.ones_like(size))  # ORIGIN
                p.sub_(group["lr"] * ratio * update)  # ALSO


class MultiDomain(nn.Module):
    def __init__(self, domains=3):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.heads = nn.ModuleList([nn.Linear(16, 2) for _ in range(domains)])

    def forward(self, x, domain):
        h = self.shared(x)
        weights = nn.functional.one_hot(domain, len(self.heads)).float()
        return sum(weights[:, k : k + 1] * head(h) for k, head in enumerate(self.heads))


def build(fixed: bool = False):
    torch.manual_seed(459)
    net = MultiDomain()
    opt = Lamb(net.parameters(), lr=1e-2, both=fixed)
    gen = torch.Generator().manual_seed(559)

    def step(i):
        x = torch.randn(12, 8, generator=gen)
        domain = torch.randint(0, 2, (12,), generator=gen)  # nothing from the third yet
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, domain), (x[:, 0] > 0).long())
        loss.backward()
        opt.step()  # ALSO
        return loss

    return net, step
