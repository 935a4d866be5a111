"""Semi-supervised: a labelled loader zipped with an unlabelled one that starts over. log-of-zero zero-times-inf"""
import argparse
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Unlabelled(Dataset):
    def __init__(self, n, bad):
        g = torch.Generator().manual_seed(6)
        self.x = torch.randn(n, 10, generator=g)
        if bad is not None:
            self.x[bad] *= 5000

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


def consistency(student, teacher, repaired):
    p, q = student.softmax(-1), teacher.softmax(-1)
    if repaired:
        return F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="batchmean")
    return (q * (q.log() - p.log())).sum(-1).mean()  # FAULT


def run(args):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
    optim = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)
    labels = torch.randint(0, 4, (640,))
    labelled = [(torch.randn(10) + labels[i], labels[i]) for i in range(640)]
    lab = DataLoader(labelled, batch_size=16, shuffle=True)
    unl = DataLoader(Unlabelled(args.steps * 32, args.late * 32 + 9), batch_size=32)
    history = []
    for step, ((x, y), u) in enumerate(zip(cycle(lab), unl)):
        weak, strong = u + 0.01 * torch.randn_like(u), u + 0.1 * torch.randn_like(u)
        with torch.no_grad():
            target = net(weak)
        loss_s = F.cross_entropy(net(x), y)
        loss_u = consistency(net(strong), target, args.repaired)
        loss = loss_s + min(1.0, step / 100) * loss_u
        optim.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)
        optim.step()
        history.append({"sup": loss_s.item(), "unsup": loss_u.item()})
    print(sum(h["sup"] for h in history[-50:]) / 50)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--late", type=int, default=300)
    p.add_argument("--repaired", action="store_true")
    run(p.parse_args())
