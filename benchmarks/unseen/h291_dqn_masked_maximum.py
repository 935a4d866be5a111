"""DQN with illegal actions at -inf; final positions, where all are illegal, take zero by torch.where; a warm-up without learning."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 8}


def build(fixed: bool = False):
    torch.manual_seed(510)
    q = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 5))
    target = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 5)).requires_grad_(False)
    target.load_state_dict(q.state_dict())
    opt = torch.optim.RMSprop(q.parameters(), lr=1e-3, centered=True)
    gen = torch.Generator().manual_seed(511)
    buffer = []

    def step(i):
        s2 = torch.randint(0, 2, (5,), generator=gen).float()
        if i % 3 == 2:
            s2.fill_(1.0)
        buffer.append((torch.randn(5, generator=gen), s2, bool(s2.all())))
        if len(buffer) < 3:
            return None
        s, s2, done = (list(c) for c in zip(*buffer))
        s, s2, done = torch.stack(s), torch.stack(s2), torch.tensor(done)
        with torch.no_grad():
            value = torch.where(s2 > 0, torch.full_like(s2, float("-inf")), target(s2)).amax(1)
            goal = 0.5 + 0.9 * torch.where(done, torch.zeros_like(value), value)
        loss = nn.functional.huber_loss(q(s)[:, 0], goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 4 == 3:
            target.load_state_dict(q.state_dict())
        return loss

    return q, step
