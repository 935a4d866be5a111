"""Q-learning with the net as its own target, no discount and raw features: the estimate chases itself until it overflows."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 15,
    "n_steps": 20,
    "oracle": "drift",
    "fix": "a smaller rate, a discount and normalised features",
}


def build(fixed: bool = False):
    torch.manual_seed(633)
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01 if fixed else 0.5)
    gen = torch.Generator().manual_seed(733)
    discount, unit = (0.9, 1.0) if fixed else (1.0, 6.0)

    def step(i):
        obs, after = unit * torch.rand(32, 6, generator=gen), unit * torch.rand(32, 6, generator=gen)
        act = torch.randint(0, 3, (32, 1), generator=gen)
        reward = torch.rand(32, generator=gen)
        with torch.no_grad():
            target = reward + discount * net(after).amax(1)
        opt.zero_grad()
        value = net(obs).gather(1, act).squeeze(1)
        loss = nn.functional.mse_loss(value, target)  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
