"""Evaluation under inference_mode between training steps, with a perplexity of an untrained head that overflows to inf."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the infinite perplexity is a number in a log"}


def build(fixed: bool = False):
    torch.manual_seed(31)
    net = nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 20))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(331)
    log = []

    @torch.inference_mode()
    def perplexity(ids):
        net.eval()
        nll = nn.functional.cross_entropy(60 * net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        log.append(torch.exp(nll).item())
        net.train()

    def step(i):
        ids = torch.randint(0, 20, (4, 9), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        perplexity(ids)
        return loss

    return net, step
