"""A pure bfloat16 model with lr 1e-2: some updates are absorbed, most are not, and the loss falls."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 12}


def build(fixed: bool = False):
    torch.manual_seed(204)
    net = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).bfloat16()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(205)

    def step(i):
        x = torch.randn(64, 8, generator=gen)
        loss = nn.functional.cross_entropy(net(x.bfloat16()).float(), x[:, :4].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
