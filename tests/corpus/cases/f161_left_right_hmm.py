"""A left-to-right HMM has log(0) for its forbidden moves; a state that cannot be reached yet sums over paths that are all -inf."""

import torch
from torch import nn

META = {
    "origin_op": "logsumexp",
    "also_ops": ("exp", "sub", "mul"),
    "phase": "backward",
    "cause": "softmax-all-masked",
    "also_causes": ("infeasible-likelihood",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "log of 1e-30 for forbidden moves",
}


class Hmm(nn.Module):
    def __init__(self, floor, states=5):
        super().__init__()
        self.emit = nn.Linear(3, states)
        stay = torch.eye(states) * 0.5 + torch.diag(torch.ones(states - 1), 1) * 0.5
        start = torch.zeros(states)
        start[0] = 1.0
        self.register_buffer("log_trans", (stay + floor).log())
        self.register_buffer("start", (start + floor).log())

    def forward(self, x):
        e = self.emit(x).log_softmax(-1)
        alpha = self.start + e[:, 0]
        for t in range(1, x.shape[1]):
            paths = alpha[:, :, None] + self.log_trans
            alpha = paths.logsumexp(1) + e[:, t]  # ORIGIN
        return alpha.logsumexp(-1)


def build(fixed: bool = False):
    torch.manual_seed(303)
    net = Hmm(1e-30 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(803)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 8, 3, generator=gen)
        loss = -net(x).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
