"""Two optimizers share one GradScaler; the embedding's optimizer is stepped directly, with gradients that still carry the scale."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "also_causes": ("learning-rate", "exploding-gradient"),
    "symptom": "grad-inf",
    "first_bad_step": 1,
    "n_steps": 5,
    "oracle": "drift",
    "fix": "scaler.step(slow) as well",
}


class Recommender(nn.Module):
    def __init__(self, users=20, items=30, dim=16):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.tower = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, v):
        return self.tower(torch.cat([self.user(u), self.item(v)], -1)).squeeze(-1)  # FIRST


def build(fixed: bool = False):
    torch.manual_seed(417)
    net = Recommender()
    fast = torch.optim.Adam(net.tower.parameters(), lr=1e-3)
    slow = torch.optim.SGD([*net.user.parameters(), *net.item.parameters()], lr=4.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    gen = torch.Generator().manual_seed(517)

    def step(i):
        u, v = torch.randint(0, 20, (32,), generator=gen), torch.randint(0, 30, (32,), generator=gen)
        liked = ((u + v) % 2).float()
        fast.zero_grad()
        slow.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logit = net(u, v)  # FIRST
        loss = nn.functional.binary_cross_entropy_with_logits(logit.float(), liked)
        scaler.scale(loss).backward()
        scaler.step(fast)
        if fixed:
            scaler.step(slow)
        else:
            slow.step()  # ORIGIN
        scaler.update()
        return loss

    return net, step
