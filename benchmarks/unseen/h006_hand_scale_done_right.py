"""A loss scale by hand with a check: infinite gradients skip the step and halve the scale; the rest is divided out in float32."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 12}


def build(fixed: bool = False):
    torch.manual_seed(210)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).half()
    master = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
    opt = torch.optim.SGD(master, lr=0.1)
    gen = torch.Generator().manual_seed(211)
    state = {"scale": 2.0**21}

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        loss = nn.functional.cross_entropy(net(x.half()).float(), x[:, :3].argmax(1))
        net.zero_grad()
        (loss * state["scale"]).backward()
        if not all(torch.isfinite(p.grad).all() for p in net.parameters()):
            state["scale"] /= 2
            return loss
        for p, m in zip(net.parameters(), master):
            m.grad = p.grad.float() / state["scale"]
        opt.step()
        with torch.no_grad():
            for p, m in zip(net.parameters(), master):
                p.copy_(m)
        return loss

    return net, step
