"""Two losses weighted by learned log-variances: the hinge of one task is met exactly, its log-variance falls without end, exp(-s) overflows."""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "also_causes": ("zero-times-inf",),
    "symptom": "loss-nan",
    "first_bad_step": 30,
    "n_steps": 36,
    "fix": "clamp the log-variances",
}


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
        self.depth, self.order = nn.Linear(24, 1), nn.Linear(24, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.body(x)
        return self.depth(h).squeeze(-1), self.order(h).squeeze(-1)


def weigh(losses, log_var, fixed):
    total = 0.0
    for k, loss in enumerate(losses):
        s = log_var[k].clamp(-8.0, 8.0) if fixed else log_var[k]
        total = total + torch.exp(-s) * loss + s  # ORIGIN
    return total


def build(fixed: bool = False):
    torch.manual_seed(14)
    model = MultiTask()
    nets = [p for n, p in model.named_parameters() if n != "log_var"]
    opt = torch.optim.SGD([{"params": nets, "lr": 0.02}, {"params": [model.log_var], "lr": 3.0}])
    gen = torch.Generator().manual_seed(15)
    best = torch.tensor(float("inf"))

    def step(i):
        nonlocal best
        x = torch.randn(32, 6, generator=gen)
        depth, order = model(x)
        l_depth = (depth - x[:, 0].abs() - torch.randn(32, generator=gen)).pow(2).mean()
        # a ranking task without a single violated pair in this collection
        l_order = torch.relu(-1.0 - order.tanh()).mean()
        loss = weigh([l_depth, l_order], model.log_var, fixed)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(nets, 1.0)
        opt.step()
        best = torch.minimum(best, l_depth.detach())
        return loss

    return model, step
