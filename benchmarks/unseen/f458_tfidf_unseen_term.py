"""TF-IDF weights inside the model: a term that no document of the batch contains has df = 0, and 0 * inf follows."""
import torch
from torch import nn

META = {
    "origin_op": "div", "also_ops": ["reciprocal"], "phase": "forward", "cause": "div-by-zero", "symptom": "loss-nan",
    "first_bad_step": 2, "n_steps": 4, "fix": "smooth: log((1 + n) / (1 + df)) + 1",
}


class TfIdf(nn.Module):
    def __init__(self, smooth):
        super().__init__()
        self.smooth = smooth

    def forward(self, counts):
        tf = counts / counts.sum(1, keepdim=True).clamp_min(1)
        df = (counts > 0).sum(0)
        idf = torch.log((1 + len(counts)) / (1 + df)) + 1 if self.smooth else torch.log(len(counts) / df)  # ORIGIN
        return tf * idf


def build(fixed=False):
    torch.manual_seed(117)
    net = nn.Sequential(TfIdf(fixed), nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(118)

    def step(i):
        counts = torch.poisson(torch.full((12, 10), 1.5), generator=gen)
        if i >= 2:
            counts[:, 6] = 0
        loss = nn.functional.cross_entropy(net(counts), torch.randint(0, 2, (12,), generator=gen))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
