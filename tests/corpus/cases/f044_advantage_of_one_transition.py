"""Actor-critic normalises advantages by their standard deviation; the last minibatch of an episode holds one transition."""

import torch
from torch import nn

META = {
    "origin_op": "std",
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "std(correction=0), or drop minibatches of one",
}


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.pi, self.v = nn.Linear(24, 3), nn.Linear(24, 1)

    def forward(self, obs):
        h = self.body(obs)
        return torch.log_softmax(self.pi(h), -1), self.v(h).squeeze(-1)


def whiten(a, correction):
    spread = a.std(correction=correction)  # ORIGIN
    return (a - a.mean()) / (spread + 1e-8)


def build(fixed: bool = False):
    torch.manual_seed(44)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(144)
    sizes = [16, 16, 16, 16, 1, 16, 16]

    def step(i):
        obs = torch.randn(sizes[i], 5, generator=gen)
        action = torch.randint(0, 3, (sizes[i],), generator=gen)
        returns = obs[:, 0] + 0.1 * torch.randn(sizes[i], generator=gen)
        logp, value = net(obs)
        advantage = whiten((returns - value).detach(), 0 if fixed else 1)
        opt.zero_grad()
        loss = (
            -(advantage * logp.gather(1, action.unsqueeze(1)).squeeze(1)).mean()
            + 0.5 * (returns - value).square().mean()
        )
        loss.backward()
        opt.step()
        return loss

    return net, step
