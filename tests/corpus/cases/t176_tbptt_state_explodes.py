"""Truncated BPTT with a linear memory: the state is detached and carried, grows by a third a step, and overflows long before the loss says so."""
import torch
from torch import nn

META = {
    "origin_op": "add",
    "also_ops": ("addmm", "mm", "mul", "linear"),
    "phase": "forward",
    "cause": "exploding-gradient",
    "also_causes": ("dtype-overflow",),
    "symptom": "loss-nan",
    "first_bad_step": 29,
    "n_steps": 40,
    "fix": "a decay below one",
}


class Memory(nn.Module):
    def __init__(self, dim, decay):
        super().__init__()
        self.inp, self.out = nn.Linear(5, dim), nn.Linear(dim, 2)
        self.decay = decay

    def forward(self, chunk, state):
        outs = []
        for x in chunk.unbind(1):
            state = self.decay * state + torch.tanh(self.inp(x))  # ORIGIN
            outs.append(self.out(state / (1 + state.detach().abs())))
        return torch.stack(outs, 1), state


def build(fixed: bool = False):
    torch.manual_seed(64)
    net = Memory(12, 0.9 if fixed else 1.35)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(65)
    state = torch.zeros(6, 12)

    def step(i):
        nonlocal state
        chunk = torch.randn(6, 10, 5, generator=gen)
        y = chunk.cumsum(1)[..., :2].tanh()
        out, state = net(chunk, state.detach())
        loss = nn.functional.mse_loss(out, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
