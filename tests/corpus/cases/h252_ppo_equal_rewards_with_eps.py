"""PPO with all rewards equal: the advantages are 0 / eps = 0, the policy gets no gradient for some rollouts, and that is right."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 9, "why": "zero advantages"}


def build(fixed: bool = False):
    torch.manual_seed(104)
    pi = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    opt = torch.optim.Adam(pi.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(105)

    def step(i):
        obs = torch.randn(32, 5, generator=gen)
        with torch.no_grad():
            old = torch.log_softmax(pi(obs), -1)
            act = torch.multinomial(old.exp(), 1, generator=gen)
            old = old.gather(1, act).squeeze(1)
        reward = torch.ones(32) if i % 3 == 1 else (act.squeeze(1) == 0).float()
        adv = (reward - reward.mean()) / (reward.std() + 1e-8)
        ratio = (torch.log_softmax(pi(obs), -1).gather(1, act).squeeze(1) - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return pi, step
