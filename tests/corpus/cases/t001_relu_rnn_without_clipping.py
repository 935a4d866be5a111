"""A ReLU recurrent net learns to add numbers without clipping; when the sequences get longer, one steep batch throws the weights away."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "exploding-gradient",
    "also_causes": ("learning-rate",),
    "symptom": "loss-nan",
    "first_bad_step": 19,
    "n_steps": 30,
    "oracle": "drift",
    "fix": "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) before the step",
}


class Adder(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.rnn = nn.RNN(2, hidden, nonlinearity="relu", batch_first=True)
        nn.init.eye_(self.rnn.weight_hh_l0)
        nn.init.normal_(self.rnn.weight_ih_l0, std=0.1)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.head(states[:, -1]).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(401)
    net = Adder()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(501)

    def step(i):
        length = 8 if i < 10 else 40  # a curriculum
        values = torch.rand(16, length, generator=gen)
        marks = (torch.rand(16, length, generator=gen) < 0.1).float()
        target = (values * marks).sum(1)
        opt.zero_grad()
        prediction = net(torch.stack([values, marks], -1))  # FIRST
        loss = nn.functional.mse_loss(prediction, target)  # FIRST
        loss.backward()
        if fixed:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()  # ORIGIN
        return loss

    return net, step
