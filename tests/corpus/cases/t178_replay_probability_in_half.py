"""Off-policy learning: the behaviour probabilities are stored in half to save memory, small ones become 0, and pi / mu divides by zero."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("_to_copy",),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("dtype-underflow",),
    "symptom": "loss-inf",
    "first_bad_step": 6,
    "n_steps": 10,
    "fix": "store log-probabilities",
}


class Memory:
    def __init__(self, capacity, dim, fixed):
        self.obs, self.act = torch.zeros(capacity, dim), torch.zeros(capacity, dtype=torch.long)
        self.mu = torch.zeros(capacity, dtype=torch.float32 if fixed else torch.float16)
        self.rew, self.n = torch.zeros(capacity), 0

    def add(self, obs, act, mu, rew):
        part = slice(self.n, self.n + len(obs))
        self.obs[part], self.act[part], self.rew[part] = obs, act, rew
        self.mu[part] = mu  # ALSO
        self.n += len(obs)


def collect(policy, memory, gen, explore):
    obs = torch.randn(20, 4, generator=gen)
    with torch.no_grad():
        logits = policy(obs)
        if explore:  # a sharpened policy, with a few random actions mixed in
            logits = 12.0 * logits - 20.0 * torch.nn.functional.one_hot(logits.argmin(1), 3)
        p = torch.softmax(logits, -1)
        act = p.argmax(1)
        if explore:
            act[:4] = p[:4].argmin(1)
    memory.add(obs, act, p.gather(1, act[:, None]).squeeze(1), (act == 0).float())


def build(fixed: bool = False):
    torch.manual_seed(70)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    opt = torch.optim.SGD(policy.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(71)
    memory = Memory(400, 4, fixed)

    def step(i):
        collect(policy, memory, gen, explore=i >= 6)
        idx = torch.randint(0, memory.n, (32,), generator=gen)
        idx[0] = memory.n - 20
        logp = torch.log_softmax(policy(memory.obs[idx]), -1).gather(1, memory.act[idx][:, None]).squeeze(1)
        ratio = logp.exp() / memory.mu[idx].float()  # ORIGIN
        adv = memory.rew[idx] - 0.4
        loss = -torch.min(ratio * adv, ratio.clamp(0, 2.0) * adv).mean()
        if fixed:
            loss = -(ratio.clamp(0, 2.0) * adv).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        return loss

    return policy, step
