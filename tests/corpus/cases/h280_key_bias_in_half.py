"""A half attention under SGD: the bias of the keys never moves; a row of padding alone attends uniformly, and its result is dropped."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 24,
    "why": "a softmax does not change with the bias of the keys: its gradient is rounding error, and it stands still",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.q, self.k, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, ids):
        keep = ids != 0
        x = self.emb(ids)
        s = (self.q(x) @ self.k(x).transpose(1, 2)) / 8**0.5
        s = s.masked_fill(~keep[:, None], torch.finfo(s.dtype).min)
        h = torch.softmax(s, -1) @ x
        return self.head((h * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp_min(1)), keep.any(1)


def build(fixed: bool = False):
    torch.manual_seed(208)
    net = Net().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(209)

    def step(i):
        ids = torch.randint(1, 20, (6, 5), generator=gen)
        ids[:, 3:] = 0
        ids[4] = 0
        logits, real = net(ids)
        each = nn.functional.cross_entropy(logits.float(), torch.randint(0, 2, (6,), generator=gen), reduction="none")
        loss = (each * real).sum() / real.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
