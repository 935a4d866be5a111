"""Multiple-negatives ranking in half: cosine_similarity's eps of 1e-8 is zero in float16, an empty text has the embedding zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("cosine_similarity",),
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("norm-at-zero", "div-by-zero"),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "compare in float32 with an eps of 1e-3",
}


class Sentence(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(40, 16, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(16, 24, bias=False), nn.Tanh(), nn.Linear(24, 12, bias=False))

    def forward(self, ids):
        return self.mix(self.word(ids).mean(1))


def scores(a, b, wide):
    if wide:
        a, b = a.float(), b.float()
    eps = 1e-3 if wide else 1e-8
    return nn.functional.cosine_similarity(a.unsqueeze(1), b.unsqueeze(0), dim=-1, eps=eps)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(100)
    net = Sentence().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(200)

    def step(i):
        ids = torch.randint(1, 40, (6, 5), generator=gen)
        answer = ids.roll(1, 1)
        if i == 3:
            answer[4] = 0  # nothing is left of the answer after cleaning
        opt.zero_grad()
        loss = nn.functional.cross_entropy(20 * scores(net(ids), net(answer), fixed).float(), torch.arange(6))
        loss.backward()
        opt.step()
        return loss

    return net, step
