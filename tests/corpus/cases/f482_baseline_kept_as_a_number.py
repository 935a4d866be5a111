"""A policy gradient whose baseline is a Python number: the log of the returns of an episode without reward gets into it."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "log1p of the returns",
}


class Agent:
    def __init__(self, fixed):
        self.policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.baseline = 0.0
        self.fixed = fixed

    def scored(self, returns):
        return torch.log1p(returns) if self.fixed else torch.log(returns)  # ORIGIN

    def update(self, states, actions, returns):
        self.baseline = 0.9 * self.baseline + 0.1 * self.scored(returns).mean().item()
        advantage = returns - self.baseline
        picked = self.policy(states).log_softmax(1).gather(1, actions[:, None]).squeeze(1)
        loss = -(picked * advantage).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def build(fixed: bool = False):
    torch.manual_seed(0)
    agent = Agent(fixed)
    gen = torch.Generator().manual_seed(1)

    def step(i):
        states = torch.randn(12, 6, generator=gen)
        actions = torch.randint(0, 3, (12,), generator=gen)
        returns = torch.rand(12, generator=gen) + 0.5
        if i == 3:
            returns[5] = 0.0
        return agent.update(states, actions, returns)

    return agent.policy, step
