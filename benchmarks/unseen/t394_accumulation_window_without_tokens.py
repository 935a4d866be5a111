"""Gradient accumulation, four micro-batches to a step: the loss is a sum over the valid tokens of a micro-batch that has none."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("empty-reduction",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "divide by the number of valid tokens of the whole window",
}


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(20, 12), nn.GRU(12, 16, batch_first=True), nn.Linear(16, 20)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def build(fixed: bool = False):
    torch.manual_seed(121)
    lm = LM()
    opt = torch.optim.AdamW(lm.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min(1.0, (t + 1) / 3))
    gen = torch.Generator().manual_seed(122)

    def micro(empty):
        ids = torch.randint(1, 20, (3, 8), generator=gen)
        keep = torch.rand(3, 7, generator=gen) > 0.3
        if empty:
            keep[:] = False  # only prompts in this one
        return ids[:, :-1], ids[:, 1:], keep

    def step(i):
        n = 2 if i == 4 else 4  # the last window of the epoch is shorter
        window = [micro(i == 3 and k == 1) for k in range(n)]
        tokens = sum(keep.sum() for _, _, keep in window)
        total = 0.0
        opt.zero_grad(set_to_none=True)
        for x, y, keep in window:
            nll = nn.functional.cross_entropy(lm(x).transpose(1, 2), y, reduction="none")
            if fixed:
                loss = (nll * keep).sum() / tokens
            else:
                loss = (nll * keep).sum() / keep.sum() / n  # ORIGIN
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        opt.step()
        sched.step()
        return torch.tensor(total)

    return lm, step
