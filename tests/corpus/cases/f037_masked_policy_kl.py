"""KL penalty to a reference policy: the actions that both policies forbid contribute -inf - (-inf)."""

import torch
from torch import nn

META = {
    "origin_op": "sub",
    "phase": "forward",
    "cause": "inf-minus-inf",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "mask with a large finite number",
}


def mlp():
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5))


class Agent(nn.Module):
    def __init__(self, blocked):
        super().__init__()
        self.blocked = blocked
        self.policy, self.value = mlp(), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def logp(self, net, obs, allowed):
        return torch.log_softmax(net(obs).masked_fill(~allowed, self.blocked), -1)


def build(fixed: bool = False):
    torch.manual_seed(37)
    agent, reference = Agent(-1e9 if fixed else -torch.inf), mlp().requires_grad_(False)
    opt = torch.optim.Adam(agent.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(137)

    def step(i):
        obs = torch.randn(12, 6, generator=gen)
        allowed = torch.ones(12, 5, dtype=torch.bool)
        if i >= 3:
            allowed[2, 1:3] = False
        reward = obs[:, 0]
        logp, ref = agent.logp(agent.policy, obs, allowed), agent.logp(reference, obs, allowed)
        baseline = agent.value(obs).squeeze(-1)
        opt.zero_grad()
        ratio = logp - ref  # ORIGIN
        penalty = (logp.exp() * ratio).sum(-1)
        loss = (
            -((reward - baseline).detach() * logp[:, 0]).mean()
            + 0.1 * penalty.mean()
            + (reward - baseline).square().mean()
        )
        loss.backward()
        opt.step()
        return loss

    return agent, step
