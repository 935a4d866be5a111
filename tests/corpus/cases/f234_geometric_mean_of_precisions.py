"""A soft BLEU takes exp(mean(log p)) over n-gram precisions; a precision of zero makes the score zero and the
gradient NaN.
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "also_phase": "forward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "smooth the precisions",
}


def precisions(prob, ref):
    hits = prob.gather(2, ref[..., None]).squeeze(-1)
    grams = [hits, hits[:, 1:] * hits[:, :-1], hits[:, 2:] * hits[:, 1:-1] * hits[:, :-2]]
    return torch.stack([g.mean(1) for g in grams], 1)


class SoftBleu(nn.Module):
    def __init__(self, smooth):
        super().__init__()
        self.smooth = smooth

    def forward(self, prob, ref):
        return 1 - torch.exp(torch.mean(torch.log(precisions(prob, ref) + self.smooth), 1)).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1047)
    net = nn.Linear(6, 7)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1052)
    criterion = SoftBleu(1e-4 if fixed else 0.0)

    def step(i):
        opt.zero_grad()
        x, ref = torch.randn(5, 4, 6, generator=gen), torch.randint(0, 7, (5, 4), generator=gen)
        if i == 2:
            x[3] *= 4000
            ref[3] = net(x)[3].argmin(-1)
        loss = criterion(net(x).softmax(-1), ref)
        loss.backward()
        opt.step()
        return loss

    return net, step
