"""A character model by truncated backpropagation through time, its state carried on. log-of-zero"""
import argparse

import torch
from torch import nn

TEXT = ("the quick brown fox jumps over the lazy dog and runs away from the noisy crowd " * 40)
CHARS = sorted(set(TEXT))
CODE = torch.tensor([CHARS.index(c) for c in TEXT])


class CharModel(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), 16)
        self.lstm = nn.LSTM(16, hidden, batch_first=True)
        self.out = nn.Linear(hidden, len(CHARS))

    def forward(self, x, state, gain):
        h, state = self.lstm(self.embed(x), state)
        return self.out(h), state, torch.tanh(gain * h)


def chunks(rows, width):
    usable = (len(CODE) - 1) // (rows * width) * rows * width
    x = CODE[:usable].view(rows, -1)
    y = CODE[1 : usable + 1].view(rows, -1)
    while True:
        for i in range(0, x.shape[1] - width + 1, width):
            yield i == 0, x[:, i : i + width], y[:, i : i + width]


def repackage(state):
    return tuple(s.detach() for s in state)


def volume(a, repaired):
    if repaired:
        return torch.log((1 - a * a).clamp_min(1e-6)).mean()
    return torch.log(1 - a * a).mean()  # FAULT


def train(args):
    torch.manual_seed(9)
    model = CharModel()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    state, step, bpc = None, 0, []
    for fresh, x, y in chunks(4, 12):
        if step == args.steps:
            break
        if fresh:
            state = None
        if state is not None:
            state = repackage(state)
        optimizer.zero_grad()
        gain = 1.0 if step < args.late else 100.0
        logits, state, a = model(x, state, gain)
        loss = nn.functional.cross_entropy(logits.reshape(-1, len(CHARS)), y.reshape(-1))
        loss = loss - 0.001 * volume(a, args.repaired)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        bpc.append(loss.item())
        step += 1
    print(f"{sum(bpc[-20:]) / 20:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--late", type=int, default=300)
    parser.add_argument("--repaired", action="store_true")
    train(parser.parse_args())
