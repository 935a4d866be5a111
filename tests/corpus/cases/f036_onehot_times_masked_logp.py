"""Imitation learning with illegal moves masked to -inf: multiplying the log-probabilities by a one-hot target meets 0 * -inf."""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "zero-times-inf",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "gather the log-probability of the target",
}


class Board(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU())
        self.move = nn.Conv2d(12, 1, 1)

    def forward(self, board, legal):
        score = self.move(self.conv(board)).flatten(1)
        return torch.log_softmax(score.masked_fill(~legal, -torch.inf), 1)


def imitation(logp, move, by_index):
    if by_index:
        return -logp.gather(1, move.unsqueeze(1)).mean()
    onehot = nn.functional.one_hot(move, logp.shape[1]).float()
    return -(onehot * logp).sum(1).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(36)
    net = Board()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(136)

    def step(i):
        board = (torch.rand(8, 2, 4, 4, generator=gen) < 0.3).float()
        legal = torch.ones(8, 16, dtype=torch.bool)
        if i >= 2:
            legal[4, 3:6] = False  # the curriculum moves on to positions with illegal moves
        move = torch.randint(6, 16, (8,), generator=gen)
        opt.zero_grad()
        loss = imitation(net(board, legal), move, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
