"""A monotonic transducer by hand: cells that no path reaches yet are logaddexp(-inf, -inf), whose gradient is NaN."""
import torch
from torch import nn

META = {
    "origin_op": "logaddexp",
    "phase": "backward",
    "cause": "softmax-all-masked",
    "also_causes": ["inf-minus-inf", "where-grad-trap", "infeasible-likelihood"],
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "a large negative number in place of -inf",
}


def lattice_loss(blank, emit, floor):
    """blank: B x T x (U + 1), emit: B x T x U, log-probabilities; one label a frame at most."""
    alpha = torch.full((blank.shape[0], blank.shape[2]), floor)
    alpha[:, 0] = 0.0
    for t in range(blank.shape[1]):
        stay = alpha + blank[:, t]
        move = nn.functional.pad(alpha[:, :-1] + emit[:, t], (1, 0), value=floor)
        alpha = torch.cat([stay[:, :1], torch.logaddexp(stay[:, 1:], move[:, 1:])], 1)  # ORIGIN
    return -alpha[:, -1].mean()


class Transducer(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.enc, self.pred = nn.Linear(5, 12), nn.Embedding(7, 12)
        self.join = nn.Linear(12, 7)

    def forward(self, x, y):
        y0 = nn.functional.pad(y, (1, 0))
        h = torch.tanh(self.enc(x)[:, :, None] + self.pred(y0)[:, None])
        lp = self.join(h).log_softmax(-1)
        index = y[:, None, :, None].expand(-1, x.shape[1], -1, 1)
        return lattice_loss(lp[..., 0], lp[:, :, :-1].gather(-1, index).squeeze(-1), self.floor)


def build(fixed: bool = False):
    torch.manual_seed(391)
    net = Transducer(-1e4 if fixed else float("-inf"))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(392)

    def step(i):
        labels = 1 if i < 3 else 3  # single words first, then phrases
        x = torch.randn(4, 6, 5, generator=gen)
        y = torch.randint(1, 7, (4, labels), generator=gen)
        opt.zero_grad()
        loss = net(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        return loss

    return net, step
