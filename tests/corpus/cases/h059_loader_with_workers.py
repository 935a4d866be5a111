"""Two worker processes prepare the batches, one with a NaN that is dropped."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "two worker processes prepare the batches, one with a NaN that is dropped",
}


class Rows(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, k):
        x = torch.full((4,), float(k % 7)) + torch.arange(4.0)
        if k % 11 == 0:
            x[0] = torch.nan
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 1)

    def forward(self, x):
        return self.l(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(404)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    batches = iter(DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context="fork"))

    def step(i):
        opt.zero_grad()
        x = next(batches)
        x = x[x.isfinite().all(1)] / 10
        loss = F.mse_loss(net(x), x.mean(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
