"""A left-to-right hidden Markov model: states that cannot be reached yet have a column of -inf, whose logsumexp has a NaN gradient."""
import torch
from torch import nn

META = {
    "origin_op": "logsumexp", "also_ops": ["exp", "sub"], "phase": "backward", "cause": "softmax-all-masked", "symptom": "grad-nan",
    "first_bad_step": 0, "n_steps": 2, "fix": "a very negative number in place of -inf",
}


class HMM(nn.Module):
    def __init__(self, states=4, symbols=5, never=float("-inf")):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(states, states))
        self.emit = nn.Parameter(torch.randn(states, symbols))
        allowed = torch.eye(states) + torch.diag(torch.ones(states - 1), 1)
        self.register_buffer("blocked", allowed == 0)
        self.never = never
        start = torch.full((states,), never)
        start[0] = 0.0
        self.register_buffer("start", start)

    def forward(self, obs):
        log_a = self.trans.masked_fill(self.blocked, self.never).log_softmax(1)
        log_b = self.emit.log_softmax(1)
        alpha = self.start + log_b[:, obs[:, 0]].T
        for t in range(1, obs.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + log_a, dim=1) + log_b[:, obs[:, t]].T  # ORIGIN
        return torch.logsumexp(alpha, 1)


def build(fixed=False):
    torch.manual_seed(63)
    net = HMM(never=-1e4 if fixed else float("-inf"))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(64)

    def step(i):
        obs = torch.randint(0, 5, (6, 7), generator=gen)
        loss = -net(obs).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
