"""PPO, four epochs over shuffled minibatches: advantages are normalised per minibatch and the last one holds one sample."""

import torch
from torch import nn

META = {
    "origin_op": "std",
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 3,
    "fix": "normalise over the whole rollout, or drop the last minibatch",
}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def evaluate(self, obs, act):
        logp = self.actor(obs).log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        return logp.gather(1, act[:, None]).squeeze(-1), entropy, self.critic(obs).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(21)
    agent = Agent()
    opt = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    gen = torch.Generator().manual_seed(22)

    def collect(n):
        obs = torch.randn(n, 4, generator=gen)
        with torch.no_grad():
            logits = agent.actor(obs)
            act = torch.multinomial(logits.softmax(-1), 1, generator=gen).squeeze(-1)
            logp = logits.log_softmax(-1).gather(1, act[:, None]).squeeze(-1)
            value = agent.critic(obs).squeeze(-1)
        reward = obs[:, 0] * (act.float() - 1.0)
        return obs, act, logp, reward - value, reward

    def update(obs, act, old, adv, ret):
        last = None
        for _epoch in range(4):
            order = torch.randperm(len(obs), generator=gen)
            for idx in order.split(8):
                if fixed and len(idx) < 2:
                    continue
                a = adv[idx]
                a = (a - a.mean()) / (a.std() + 1e-8)  # ORIGIN
                logp, ent, value = agent.evaluate(obs[idx], act[idx])
                ratio = (logp - old[idx]).exp()
                pg = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
                last = pg + 0.5 * (value - ret[idx]).pow(2).mean() - 0.01 * ent.mean()
                opt.zero_grad()
                last.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                opt.step()
        return last

    def step(i):
        n = 33 if i == 2 else 32  # one environment finished late and its last transition is kept
        return update(*collect(n))

    return agent, step
