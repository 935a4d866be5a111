"""A margin loss that is met and a PPO ratio outside its clip: on some steps every gradient of a head is exactly zero by design."""
import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "a margin that is met and a clipped ratio have no gradient, by design",
}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.rank = nn.Linear(6, 1)

    def forward(self, s):
        return self.pi(s).log_softmax(-1), self.rank(s)


def build(fixed: bool = False):
    torch.manual_seed(1276)
    net = Agent().to(torch.bfloat16)
    opt = torch.optim.SGD(net.parameters(), lr=0.3)
    gen = torch.Generator().manual_seed(1277)
    s = torch.randn(8, 6, generator=gen).to(torch.bfloat16)
    act = torch.randint(0, 3, (8,), generator=gen)
    with torch.no_grad():
        old = net(s)[0].gather(1, act[:, None]).float()
        net.rank.weight.zero_()
        net.rank.weight[0, 0] = 4.0

    def step(i):
        a = torch.randn(8, 6, generator=gen)
        b = a.clone()
        a[:, 0] = a[:, 0].abs() + 1.0
        b[:, 0] = -a[:, 0]
        logp, _ = net(s)
        ratio = (logp.gather(1, act[:, None]).float() - old).exp()
        adv = torch.ones_like(ratio)
        ppo = -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        hi, lo = net(a.to(torch.bfloat16))[1], net(b.to(torch.bfloat16))[1]
        hinge = torch.relu(1.0 - (hi - lo).float()).mean()
        opt.zero_grad()
        (ppo + hinge).backward()
        opt.step()
        return ppo.detach() + hinge.detach()

    return net, step
