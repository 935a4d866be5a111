"""Q-learning with prioritised replay; an environment of its own, a target network. pow-fraction-at-zero div-by-zero"""
import argparse
import random
from collections import deque

import numpy as np
import torch
from torch import nn


class Cart:
    """A point that is to be kept near zero."""

    def __init__(self):
        self.rng = np.random.default_rng(7)
        self.reset()

    def reset(self):
        self.x, self.v, self.t = self.rng.normal(), 0.0, 0
        return self.observe()

    def observe(self):
        return np.array([self.x, self.v], dtype=np.float32)

    def step(self, action):
        self.v += 0.1 * (action - 1) + 0.01 * self.rng.normal()
        self.x += 0.1 * self.v
        self.t += 1
        return self.observe(), -abs(self.x), abs(self.x) > 4 or self.t >= 60


class Buffer:
    def __init__(self, size=2000):
        self.items, self.priority = deque(maxlen=size), deque(maxlen=size)

    def add(self, item, priority):
        self.items.append(item)
        self.priority.append(priority)

    def sample(self, n):
        index = [random.randrange(len(self.items)) for _ in range(n)]
        s, a, r, s2, d = zip(*(self.items[i] for i in index))
        p = torch.tensor([self.priority[i] for i in index])
        return (torch.tensor(np.stack(s)), torch.tensor(a), torch.tensor(r, dtype=torch.float32),
                torch.tensor(np.stack(s2)), torch.tensor(d, dtype=torch.float32), p)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--late", type=int, default=300)
    p.add_argument("--repaired", action="store_true")
    args = p.parse_args()
    random.seed(7)
    torch.manual_seed(7)
    q = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    target = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    env, buffer = Cart(), Buffer()
    state, returns, total = env.reset(), [], 0.0
    updates = 0
    while updates < args.steps:
        epsilon = max(0.05, 1 - updates / 200)
        if random.random() < epsilon:
            action = random.randrange(3)
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(state)).argmax())
        after, reward, done = env.step(action)
        total += reward
        priority = 0.0 if updates >= args.late else 1.0 + abs(reward)
        buffer.add((state, action, reward, after, done), priority)
        state = after
        if done:
            returns.append(total)
            state, total = env.reset(), 0.0
        if len(buffer.items) < 64:
            continue
        s, a, r, s2, d, prio = buffer.sample(32)
        weight = (prio / prio.max().clamp_min(1e-6)).clamp_min(1e-6 if args.repaired else 0.0) ** -0.4  # FAULT
        with torch.no_grad():
            goal = r + 0.98 * (1 - d) * target(s2).amax(1)
        error = nn.functional.smooth_l1_loss(q(s).gather(1, a[:, None])[:, 0], goal, reduction="none")
        loss = (weight * error).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % 50 == 0:
            target.load_state_dict(q.state_dict())
    print(len(returns), round(float(np.mean(returns[-5:])), 2))


main()
