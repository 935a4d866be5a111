"""Attention over sequences that grow longer; a batch has a sequence that is all padding. softmax-all-masked"""
import argparse
import math

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--late", type=int, default=300)
parser.add_argument("--repaired", action="store_true")
opts = parser.parse_args()

torch.manual_seed(2)
D = 16
embed = nn.Embedding(50, D, padding_idx=0)
qkv = nn.Linear(D, 3 * D)
head = nn.Linear(D, 50)
params = [*embed.parameters(), *qkv.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(params, lr=2e-3)


def attend(tokens):
    h = embed(tokens)
    q, k, v = qkv(h).chunk(3, -1)
    scores = q @ k.transpose(1, 2) / math.sqrt(D)
    pad = (tokens == 0)[:, None, :]
    if opts.repaired:
        pad = pad & ~pad.all(-1, keepdim=True)
    scores = scores.masked_fill(pad, float("-inf"))
    return h + scores.softmax(-1) @ v  # FAULT


def batch_of(length, step):
    tokens = torch.randint(1, 50, (8, length))
    lengths = torch.randint(2, length + 1, (8,))
    tokens[torch.arange(length) >= lengths[:, None]] = 0
    if step == opts.late:
        tokens[2] = 0
    return tokens


step = 0
stages = [4, 8, 12, 16]
for stage, length in enumerate(stages):
    share = opts.steps // len(stages)
    while step < share * (stage + 1):
        tokens = batch_of(length, step)
        logits = head(attend(tokens))
        targets = tokens.roll(-1, 1)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(f"length {length}: loss {loss.item():.3f}")
