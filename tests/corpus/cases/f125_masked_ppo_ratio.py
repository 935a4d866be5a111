"""PPO with action masks keeps the log-probabilities of all actions; new minus old is -inf - (-inf) where an action is illegal."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sub",
    "phase": "forward",
    "cause": "inf-minus-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "gather the taken action before the difference",
}


class Pi(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, obs, mask):
        logits = self.fc(obs).masked_fill(~mask, -torch.inf)
        return F.log_softmax(logits, -1)


def build(fixed: bool = False):
    torch.manual_seed(219)
    net = Pi()
    opt = torch.optim.Adam(net.parameters(), lr=3e-4)
    gen = torch.Generator().manual_seed(719)

    def step(i):
        opt.zero_grad()
        obs = torch.randn(12, 8, generator=gen)
        mask = torch.rand(12, 5, generator=gen) < 0.6
        mask[:, 1] = True
        act = torch.ones(12, dtype=torch.long)[:, None]
        adv = torch.randn(12, 1, generator=gen)
        with torch.no_grad():
            old = net(obs + 0.01, mask)
        new = net(obs, mask)
        if fixed:
            new, old = new.gather(1, act), old.gather(1, act)
        log_ratio = new - old  # ORIGIN
        ratio = log_ratio.exp()
        if not fixed:
            ratio = ratio.gather(1, act) + 0 * ratio.mean()
        loss = -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
