"""Linear decay that does not stop at zero: past the end the learning rate is negative and ever larger, and the loss climbs until it overflows."""
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("_foreach_add_", "mse_loss", "addmm", "mm", "pow", "mean"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "oracle": "drift",
    "symptom": "loss-inf",
    "first_bad_step": 64,
    "n_steps": 70,
    "fix": "max(0.1, 1 - step / total)",
}


def decay(total, fixed):
    return lambda t: max(0.1, 1 - t / total) if fixed else 1 - t / total


def build(fixed: bool = False):
    torch.manual_seed(32)
    net = nn.Linear(9, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, decay(5, fixed))
    gen = torch.Generator().manual_seed(33)
    w = torch.randn(9, 2, generator=gen)

    def step(i):
        x = torch.randn(32, 9, generator=gen)
        y = x @ w + 0.1 * torch.randn(32, 2, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        sched.step()
        return loss

    return net, step
