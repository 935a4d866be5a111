"""Half-way, Adam makes way for a new SGD with stochastic weight averaging; the average's counter and batch statistics start late."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

META = {
    "healthy": True,
    "n_steps": 16,
    "why": "an optimizer that is replaced, and an average that begins in the middle, are ordinary",
}


class WithAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 2))
        self.average = AveragedModel(self.net, use_buffers=True)


def build(fixed: bool = False):
    torch.manual_seed(617)
    model = WithAverage()
    state = {"opt": torch.optim.Adam(model.net.parameters(), lr=3e-3)}
    gen = torch.Generator().manual_seed(717)

    def step(i):
        if i == 8:
            state["opt"] = torch.optim.SGD(model.net.parameters(), lr=0.05, momentum=0.9)
        opt = state["opt"]
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model.net(x), x[:, :2].abs())
        loss.backward()
        opt.step()
        if i >= 8:
            model.average.update_parameters(model.net)
        return loss

    return model, step
