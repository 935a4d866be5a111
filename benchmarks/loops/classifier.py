"""A tabular classifier with a validation split, a scheduler and the best weights kept. std-of-constant"""
import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--late", type=int, default=300)
    parser.add_argument("--repaired", action="store_true")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.inp = nn.Linear(12, 48)
        self.mid = nn.Sequential(nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 48), nn.ReLU())
        self.out = nn.Linear(48, 5)

    def standardise(self, x):
        centred = x - x.mean(dim=1, keepdim=True)
        var = centred.pow(2).mean(dim=1, keepdim=True)
        return centred / torch.sqrt(var + self.eps)  # FAULT

    def forward(self, x):
        return self.out(self.mid(self.inp(self.standardise(x))))


def make_data(late, batch_size, steps):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(steps * batch_size, 12, generator=g)
    w = torch.randn(12, 5, generator=g)
    y = (x @ w).argmax(1)
    x[late * batch_size + 7] = 0.5  # a dead sensor
    return x, y


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main():
    args = get_args()
    torch.manual_seed(0)
    x, y = make_data(args.late, args.batch_size, args.steps)
    train = DataLoader(TensorDataset(x, y), batch_size=args.batch_size)
    val = DataLoader(TensorDataset(x[:200], y[:200]), batch_size=100)
    model = Net(1e-6 if args.repaired else 0.0)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps)
    best, best_state, running = 0.0, None, 0.0
    for it, (xb, yb) in enumerate(train):
        logits = model(xb)
        loss = F.cross_entropy(logits, yb, label_smoothing=0.05)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        running = 0.98 * running + 0.02 * loss.item()
        if (it + 1) % 100 == 0:
            acc = evaluate(model, val)
            if acc > best:
                best, best_state = acc, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    print(f"best {best:.3f} loss {running:.3f}")


if __name__ == "__main__":
    main()
