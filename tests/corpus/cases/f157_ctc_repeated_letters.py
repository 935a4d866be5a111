"""A CTC recogniser of digits: repeated labels need a blank between them, and a short utterance has too few frames."""

import torch
from torch import nn

META = {
    "origin_op": "_ctc_loss",
    "also_ops": ("ctc_loss",),
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "zero_infinity=True",
}


class Asr(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(5, 16, 3, stride=2, padding=1)
        self.lstm = nn.LSTM(16, 16, bidirectional=True)
        self.out = nn.Linear(32, 6)

    def forward(self, x):
        h = torch.relu(self.conv(x)).permute(2, 0, 1)
        return self.out(self.lstm(h)[0]).log_softmax(-1)


def build(fixed: bool = False):
    torch.manual_seed(255)
    net = Asr()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(755)
    ctc = nn.CTCLoss(zero_infinity=fixed)

    def step(i):
        opt.zero_grad()
        x = torch.randn(3, 5, 20, generator=gen)
        logp = net(x)
        label = torch.tensor([[1, 2, 3, 4], [2, 3, 2, 1], [4, 1, 3, 2]])
        frames = torch.tensor([10, 10, 10])
        if i == 2:
            label[1] = 5
            frames[1] = 6
        loss = ctc(logp, label, frames, torch.tensor([4, 4, 4]))  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
