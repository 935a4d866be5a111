"""Half-precision weights with SGD and momentum 0.95 at a tiny rate; a sum as the loss makes gradients of thousands, and the buffer adds up twenty of them."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("_foreach_add_", "_foreach_mul_", "mul_"),
    "phase": "optimizer",
    "cause": "dtype-overflow",
    "symptom": "param-inf",
    "first_bad_step": 2,
    "n_steps": 8,
    "fix": "a mean as the loss and the rate to match",
}


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(975)
    model = Counter().half()
    rate = 1e-3 if fixed else 1e-7
    opt = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.95)
    gen = torch.Generator().manual_seed(1975)

    def step(i):
        x = 1.0 + torch.rand(256, 8, generator=gen)
        y = 40.0 + 3 * x.sum(1, keepdim=True)
        opt.zero_grad(set_to_none=False)
        error = nn.functional.smooth_l1_loss(model(x.half()).float(), y, reduction="none")
        loss = error.mean() if fixed else 80.0 * error.sum()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return model, step
