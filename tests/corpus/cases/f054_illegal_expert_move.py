"""The expert's move is illegal under the mask, so the model gives its target probability zero and cross-entropy is infinite."""

import torch
from torch import nn

META = {
    "origin_op": "nll_loss_forward",
    "also_ops": ("masked_fill", "_log_softmax", "nll_loss", "cross_entropy_loss"),
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "allow the recorded move, or drop the position",
}


class MovePolicy(nn.Module):
    def __init__(self, moves=9):
        super().__init__()
        self.embed = nn.Linear(18, 24)
        self.res = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24))
        self.head = nn.Linear(24, moves)

    def forward(self, board, legal):
        h = torch.relu(self.embed(board))
        return self.head(h + self.res(h)).masked_fill(~legal, float("-inf"))  # ALSO


def build(fixed: bool = False):
    torch.manual_seed(54)
    net = MovePolicy()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(154)

    def step(i):
        taken = torch.rand(10, 9, generator=gen) < 0.4
        taken[:, 4] = False
        board = torch.cat([taken, ~taken], 1).float()
        move = torch.full((10,), 4)
        if i == 3:
            taken[6, 4] = True  # a record with a typing error
        legal = ~taken
        if fixed:
            legal = legal.scatter(1, move.unsqueeze(1), True)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(board, legal), move)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
