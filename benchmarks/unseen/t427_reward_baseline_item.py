"""REINFORCE: the deviation of the returns is taken out with .item() and divides the advantages; an episode of one step makes it NaN."""
import torch
from torch import nn

META = {
    "origin_op": "std",
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 5,
    "fix": "use the deviation only of episodes longer than one step",
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))

    def forward(self, s):
        return self.f(s).log_softmax(-1)


def build(fixed: bool = False):
    torch.manual_seed(451)
    pi = Policy()
    opt = torch.optim.Adam(pi.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(452)

    def episode(n):
        s = torch.randn(n, 3, generator=gen)
        logp = pi(s)
        a = torch.multinomial(logp.detach().exp(), 1, generator=gen)
        reward = (s[:, 0] > 0).float() * a.squeeze(1)
        return logp.gather(1, a).squeeze(1), reward.flip(0).cumsum(0).flip(0)

    def step(i):
        logp, ret = episode(1 if i == 4 else 6 + i)
        mean, scale = ret.mean().item(), 1.0
        if len(ret) > 1 or not fixed:
            scale = ret.std().item()  # ORIGIN
        loss = -(logp * ((ret - mean) / (scale + 1e-6))).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return pi, step
