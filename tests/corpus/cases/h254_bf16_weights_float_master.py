"""bfloat16 weights with float32 masters: the copy moves only now and then, the masters move at every step."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 10, "why": "master weights"}


class MasterSGD:
    def __init__(self, model, lr):
        self.pairs = [(p, p.detach().float().clone()) for p in model.parameters()]
        self.lr = lr

    @torch.no_grad()
    def step(self):
        for p, w in self.pairs:
            w.add_(p.grad.float(), alpha=-self.lr)
            p.copy_(w)
            p.grad = None


def build(fixed: bool = False):
    torch.manual_seed(108)
    net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 2)).bfloat16()
    opt = MasterSGD(net, 1e-3)
    gen = torch.Generator().manual_seed(109)

    def step(i):
        x = torch.randn(32, 6, generator=gen)
        y = (x[:, 0] > 0).long()
        loss = nn.functional.cross_entropy(net(x.bfloat16()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
