"""Forward sum over monotonic alignments (text to speech): states that cannot be reached yet are log 0, and -inf - (-inf) is taken inside a hand-written logaddexp."""
import torch
from torch import nn

META = {
    "origin_op": "sub",
    "phase": "forward",
    "cause": "inf-minus-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.714400565,
    "fix": "a large negative number for log 0",
}


NEG = float("-inf")


class Aligner(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Parameter(torch.tensor([[0.5, -0.2, 0.1], [0.0, 0.4, -0.6], [-0.3, 0.9, 0.2], [0.1, -0.5, 1.2]]))

    def log_likelihood(self, log_zero=NEG):
        lp = torch.log_softmax(self.score, dim=1)
        alpha = torch.full((3,), log_zero)
        alpha[0] = lp[0, 0]
        for t in range(1, 4):
            stay = alpha
            move = torch.cat([alpha.new_full((1,), log_zero), alpha[:-1]])
            gap = (stay - move).abs()  # ORIGIN
            alpha = torch.maximum(stay, move) + torch.log1p(torch.exp(-gap)) + lp[t]
        return alpha[-1]


def build(fixed: bool = False):
    m = Aligner()
    optim = torch.optim.Adam(m.parameters(), lr=1e-3)

    def step(i):
        optim.zero_grad()
        loss = -(m.log_likelihood(-1e4) if fixed else m.log_likelihood())
        loss.backward()
        optim.step()
        return loss

    return m, step


def t64(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def truth():
    s = t64([[0.5, -0.2, 0.1], [0.0, 0.4, -0.6], [-0.3, 0.9, 0.2], [0.1, -0.5, 1.2]], True)
    p = torch.softmax(s, 1)
    paths = [(0, 0, 1, 2), (0, 1, 1, 2), (0, 1, 2, 2)]
    total = sum(p[0, a] * p[1, b] * p[2, c] * p[3, d] for a, b, c, d in paths)
    return {"score": torch.autograd.grad(-total.log(), s)[0]}
