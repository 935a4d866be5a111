"""CTC after time subsampling: a short utterance has fewer frames than its transcript has letters, no alignment exists."""

import torch
from torch import nn

META = {
    "origin_op": "_ctc_loss",
    "also_ops": ("ctc_loss",),
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "zero_infinity=True, or filter such utterances",
}


class Recogniser(nn.Module):
    def __init__(self, letters=8):
        super().__init__()
        self.sub = nn.Sequential(
            nn.Conv1d(6, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv1d(16, 16, 3, stride=2, padding=1), nn.ReLU()
        )
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, letters)

    def forward(self, mel):
        h, _ = self.rnn(self.sub(mel).transpose(1, 2))
        return self.out(h).log_softmax(-1)


def build(fixed: bool = False):
    torch.manual_seed(52)
    net = Recogniser()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(152)

    def step(i):
        mel = torch.randn(4, 6, 40, generator=gen)
        frames = torch.full((4,), 40)
        if i == 3:
            frames[2] = 15
        text = torch.randint(1, 8, (4, 5), generator=gen)
        logp = net(mel).transpose(0, 1)
        opt.zero_grad()
        loss = nn.functional.ctc_loss(logp, text, (frames + 3) // 4, torch.full((4,), 5), zero_infinity=fixed)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
