"""A transducer lattice by hand: idle cells are -inf, the gradient of logaddexp(-inf, -inf) is NaN, and masked_fill takes it away again."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "NaN gradients of idle cells are replaced by the backward of masked_fill",
}


def transducer_loss(blank, emit, frames, labels, floor):
    """blank, emit: batch x T x (U + 1) log-probabilities; frames, labels: lengths."""
    b, t_max, u_max = blank.shape
    idle = torch.arange(t_max)[None] >= frames[:, None]
    low = torch.full((b,), floor)
    alpha = [torch.zeros(b)] + [low] * (u_max - 1)
    ends = []
    for t in range(t_max):
        new = []
        for u in range(u_max):
            stay = alpha[u] + blank[:, t - 1, u] if t else alpha[u]
            stay = stay.masked_fill(idle[:, t], floor)
            if u == 0:
                new.append(stay)
                continue
            move = (new[u - 1] + emit[:, t, u - 1]).masked_fill(idle[:, t], floor)
            new.append(torch.logaddexp(stay, move))
        alpha = new
        ends.append(torch.stack(alpha, 1) + blank[:, t])
    table = torch.stack(ends, 1)
    return -table[torch.arange(b), frames - 1, labels].mean()


class Transducer(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.enc, self.pred = nn.Linear(5, 12), nn.Embedding(7, 12)
        self.join = nn.Linear(12, 7)

    def forward(self, x, y, frames, labels):
        y0 = nn.functional.pad(y, (1, 0))
        lp = self.join(torch.tanh(self.enc(x)[:, :, None] + self.pred(y0)[:, None])).log_softmax(-1)
        emit = lp[:, :, :-1].gather(-1, y[:, None, :, None].expand(-1, x.shape[1], -1, 1)).squeeze(-1)
        return transducer_loss(lp[..., 0], emit, frames, labels, self.floor)


def build(fixed: bool = False):
    torch.manual_seed(391)
    net = Transducer(-1e4 if fixed else float("-inf"))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(392)

    def step(i):
        x = torch.randn(3, 6, 5, generator=gen)
        y = torch.randint(1, 7, (3, 3), generator=gen)
        frames = torch.tensor([6, 6, 6])
        if i == 3:
            frames[1] = 4  # the first batch with recordings of different lengths
        labels = torch.tensor([3, 2, 3])
        opt.zero_grad()
        loss = net(x, y, frames, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        return loss

    return net, step
