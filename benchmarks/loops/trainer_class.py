"""Contrastive learning in a class with fit, run_epoch and train_step methods. norm-at-zero sqrt-at-zero div-by-zero"""
import argparse
import logging
from collections import defaultdict

import torch
from torch import nn

log = logging.getLogger("contrast")


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, width, bias=False), nn.Tanh(), nn.Linear(width, 8, bias=False))

    def forward(self, x):
        return self.body(x)


class Pairs:
    """Two views of the same thing."""

    def __init__(self, count, late, size=24):
        self.count, self.late, self.size = count, late, size

    def __len__(self):
        return self.count

    def __iter__(self):
        g = torch.Generator().manual_seed(5)
        for i in range(self.count):
            x = torch.randn(self.size, 16, generator=g)
            if i == self.late:
                x[3] = 0  # silence
            yield x, x * (1 + 0.1 * torch.randn(self.size, 1, generator=g))


class ContrastiveTrainer:
    def __init__(self, args):
        self.args = args
        self.model = Encoder()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.metrics = defaultdict(list)
        self.global_step = 0

    def embed(self, x):
        z = self.model(x)
        length = (z * z).sum(-1, keepdim=True).sqrt()  # FAULT
        return z / (length + 1e-8)

    def embed_safely(self, x):
        return nn.functional.normalize(self.model(x), dim=-1, eps=1e-6)

    def train_step(self, batch):
        a, b = batch
        embed = self.embed_safely if self.args.repaired else self.embed
        za, zb = embed(a), embed(b)
        logits = za @ zb.T / 0.2
        target = torch.arange(len(a))
        loss = (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.T, target)) / 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.global_step += 1
        self.metrics["loss"].append(loss.detach())
        return {"loss": loss.item()}

    def run_epoch(self, loader):
        for batch in loader:
            stats = self.train_step(batch)
            if self.global_step % 200 == 0:
                log.info("step %d loss %.3f", self.global_step, stats["loss"])

    def fit(self):
        self.run_epoch(Pairs(self.args.steps, self.args.late))
        return torch.stack(self.metrics["loss"]).mean()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--late", type=int, default=300)
    p.add_argument("--repaired", action="store_true")
    torch.manual_seed(1)
    print(f"{ContrastiveTrainer(p.parse_args()).fit():.4f}")
