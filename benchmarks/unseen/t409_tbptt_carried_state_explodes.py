"""The hidden state of a rectified recurrence is carried from call to call: its radius is above one, and in the end a product overflows."""
import torch
from torch import nn

META = {
    "origin_op": "mm",
    "also_ops": ("addmm", "add", "mse_loss", "pow", "linear"),
    "phase": "forward",
    "cause": "dtype-overflow",
    "also_causes": ("exploding-gradient", "learning-rate"),
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "a squashing nonlinearity for the state",
}


class Recurrence(nn.Module):
    def __init__(self, squash):
        super().__init__()
        self.w = nn.Parameter(torch.randn(12, 12) * 0.1 + 2.5 * torch.eye(12))
        self.u, self.head = nn.Linear(2, 12), nn.Linear(12, 1)
        self.squash = squash

    def forward(self, x, h):
        for t in range(x.shape[1]):
            a = h @ self.w.T + self.u(x[:, t])  # ORIGIN
            h = torch.tanh(a) if self.squash else torch.relu(a)
        return self.head(h / (1 + h.abs().sum(1, keepdim=True))), h


def build(fixed: bool = False):
    torch.manual_seed(261)
    net = Recurrence(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(262)
    state = torch.zeros(3, 12)

    def step(i):
        nonlocal state
        x = torch.rand(3, 20, 2, generator=gen)
        y, state = net(x, state.detach())
        loss = nn.functional.mse_loss(y.squeeze(-1), x.mean((1, 2)))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
