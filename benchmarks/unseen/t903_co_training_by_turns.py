"""Two nets taught in turn, one on even and one on odd calls; a weight by the inverse of the peer's disagreement meets full agreement."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("reciprocal",),
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 7,
    "n_steps": 10,
    "fix": "an epsilon beside the disagreement",
}


def build(fixed: bool = False):
    torch.manual_seed(730)
    nets = nn.ModuleList([nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2)) for _ in range(2)])
    opts = [torch.optim.Adam(n.parameters(), lr=1e-2) for n in nets]
    gen = torch.Generator().manual_seed(731)
    eps = 1e-3 if fixed else 0.0

    def teach(student, peer, opt, x, y):
        with torch.no_grad():
            differ = (peer(x).softmax(1) - nets[0](x).softmax(1)).abs().sum(1)
            differ = differ + (y != peer(x).argmax(1)).float()
        weight = 1.0 / (differ.mean() + eps)  # ORIGIN
        loss = weight * nn.functional.cross_entropy(student(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    def step(i):
        x = torch.randn(10, 4, generator=gen)
        y = (x[:, 0] > 0).long()
        turn = i % 2
        if i == 7:
            y = nets[0](x).argmax(1)
        return teach(nets[turn], nets[1 - turn], opts[turn], x, y)

    return nets, step
