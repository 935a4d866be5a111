"""A recurrent net whose gradient now and then is ten thousand times its usual size: clipping by norm holds it."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 30,
    "why": "each spike is clipped to norm one and the weights stay where they were",
}


def build(fixed: bool = False):
    torch.manual_seed(829)
    net = nn.RNN(2, 16, nonlinearity="relu", batch_first=True)
    head = nn.Linear(16, 1)
    model = nn.ModuleList([net, head])
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(929)

    def step(i):
        x = torch.rand(16, 12, 2, generator=gen) * (200.0 if i % 9 == 7 else 1.0)
        y = x.sum((1, 2)).unsqueeze(1) / 4
        opt.zero_grad()
        loss = nn.functional.mse_loss(head(net(x)[0][:, -1]), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss

    return model, step
