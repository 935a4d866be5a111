"""GRPO standardises rewards within each prompt's group; when every answer is right the standard deviation is zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "std-of-constant",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add 1e-4 to the standard deviation",
}


class LM(nn.Module):
    def __init__(self, vocab=17, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.gru(self.emb(ids))[0])


def advantages(reward, group, eps):
    r = reward.view(-1, group)
    centred = r - r.mean(1, keepdim=True)
    return (centred / (r.std(1, keepdim=True) + eps)).flatten()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(224)
    net = LM()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(724)

    def step(i):
        opt.zero_grad()
        ids = torch.randint(0, 17, (12, 6), generator=gen)
        reward = (torch.arange(12) % 2).float()
        if i == 2:
            reward[:4] = 1.0
        adv = advantages(reward, 4, 1e-4 if fixed else 0.0)
        logp = torch.log_softmax(net(ids[:, :-1]), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = -(adv[:, None] * logp).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
