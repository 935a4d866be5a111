"""Fine-tuning from a checkpoint that was saved after its run had diverged: one row of a weight is NaN from the start."""

import torch
from torch import nn

META = {
    "origin_op": "addmm",
    "also_ops": ("linear", "mul", "fill_", "copy_", "index_put_", "relu"),
    "phase": "init",
    "cause": "poisoned-parameter",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "load the last checkpoint with finite weights",
}


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 24), nn.Linear(24, 24)

    def forward(self, x):
        h = torch.tanh(self.fc1(x))
        return torch.tanh(self.fc2(h))  # ORIGIN


def saved_run(step):
    torch.manual_seed(67)
    state = {k: v.clone() for k, v in Backbone().state_dict().items()}
    if step > 9000:
        state["fc2.weight"][5] = float("nan")  # DATA
    return state


def build(fixed: bool = False):
    torch.manual_seed(670)
    backbone = Backbone()
    backbone.load_state_dict(saved_run(9000 if fixed else 10000))
    net = nn.Sequential(backbone, nn.Linear(24, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(167)

    def step(i):
        x = torch.randn(12, 6, generator=gen)
        y = torch.randint(0, 3, (12,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
