"""Notebook cells that the tests of the widgets start from: a small net whose root of zero spoils
every gradient."""

from __future__ import annotations

WATCHED = """import torch, nanlab
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(32, 6)
with nanlab.watch(model, on_fault="record") as trace:
    for i in range(2):
        optimizer.zero_grad()
        (model(x) * 1e-6).square().mean().backward()
        h = model(x)
        distance = ((h - (h if i else 0)) ** 2).sum(-1).sqrt()
        distance.mean().backward()
        optimizer.step()
"""
STEPPER = "s = trace.stepper(); s"
UNDERFLOW = "u = trace.underflow(); u"
