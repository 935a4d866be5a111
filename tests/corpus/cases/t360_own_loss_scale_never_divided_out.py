"""A loss scale by hand, copied from a half-precision recipe, that is never divided out: the update is 512 times too large."""
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 8,
    "oracle": "drift",
    "fix": "divide the gradients by the scale before the step",
}
LOSS_SCALE = 512.0


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.out(torch.relu(self.mid(torch.relu(self.inp(x)))))


def build(fixed: bool = False):
    torch.manual_seed(10)
    net = Mlp()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(11)

    def step(i):
        x = torch.randn(24, 6, generator=gen)
        y = torch.stack([x[:, 0] * x[:, 1], x[:, 2]], 1)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)  # FIRST
        (loss * LOSS_SCALE).backward()  # ALSO
        if fixed:
            for p in net.parameters():
                p.grad.div_(LOSS_SCALE)
        opt.step()  # ORIGIN
        return loss

    return net, step
