"""An entropy bonus with torch.special.entr over probabilities that are zero for illegal moves."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "entr(0) is 0, and softmax's backward multiplies its infinite slope away only where the logits are masked"}


def build(fixed=False):
    torch.manual_seed(307)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(308)

    def step(i):
        obs = torch.randn(8, 6, generator=gen)
        legal = torch.rand(8, 4, generator=gen) < 0.7
        legal[:, 0] = True
        logp = net(obs).masked_fill(~legal, -torch.inf).log_softmax(-1)
        plogp = torch.where(legal, logp, torch.zeros_like(logp)) * logp.exp()
        action = torch.multinomial(logp.exp().detach(), 1, generator=gen)
        advantage = torch.randn(8, generator=gen)
        loss = -(logp.gather(1, action).squeeze(1) * advantage).mean() + 0.01 * plogp.sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch.special.entr(logp.exp()).sum(-1).mean().item()
        return loss

    return net, step
