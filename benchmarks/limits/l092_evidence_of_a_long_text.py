"""Forward algorithm of a hidden Markov tagger in probabilities: after 130 words the sum over all paths is 1e-60, which float32 has not.

Source: unsupervised part-of-speech tagging; short sentences first, then a document
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 1,
    "n_steps": 3,
    "kind": "overflow",
    "loss_truth": 1.429192758,
    "fix": "the recursion in logarithms",
}

TEXTS = [[0, 2, 1, 1, 3], [(k * k + 3 * k // 2) % 4 for k in range(130)]]
MOVE = [[0.8, -0.3], [-0.5, 0.4]]
SAY = [[0.5, -0.2, 0.1, 0.9], [-0.4, 0.7, 0.3, -0.1]]


def evidence(text, start, move, say):
    alpha = start.exp() * say.exp()[:, text[0]]
    for word in text[1:]:
        alpha = (alpha @ move.exp()) * say.exp()[:, word]
    return torch.log(alpha.sum())  # ORIGIN


def log_evidence(text, start, move, say):
    alpha = start + say[:, text[0]]
    for word in text[1:]:
        alpha = torch.logsumexp(alpha[:, None] + move, 0) + say[:, word]
    return torch.logsumexp(alpha, 0)


class Tagger(nn.Module):
    def __init__(self, recursion):
        super().__init__()
        self.start = nn.Parameter(torch.tensor([0.2, -0.2]))
        self.move = nn.Parameter(torch.tensor(MOVE))
        self.say = nn.Parameter(torch.tensor(SAY))
        self.recursion = recursion

    def forward(self, text):
        return self.recursion(text, start=self.start.log_softmax(0), move=self.move.log_softmax(1), say=self.say.log_softmax(1))


def build(fixed: bool = False):
    net = Tagger(log_evidence if fixed else evidence)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        text = TEXTS[i % 2]
        loss = -net(text) / len(text)
        loss.backward()
        opt.step()
        return loss

    return net, step


def analysis():
    """Baum and Welch: expected counts from a scaled forward and backward pass"""
    f8 = torch.float64
    start, move, say = torch.tensor([0.2, -0.2], dtype=f8), torch.tensor(MOVE, dtype=f8), torch.tensor(SAY, dtype=f8)
    for i in range(2):
        text, n = TEXTS[i], len(TEXTS[i])
        p, a, b = torch.softmax(start, 0), torch.softmax(move, 1), torch.softmax(say, 1)
        forward, scale = [], []
        for t, word in enumerate(text):
            row = (p if t == 0 else forward[-1] @ a) * b[:, word]
            scale.append(row.sum())
            forward.append(row / row.sum())
        backward = [torch.ones(2, dtype=f8)]
        for t in range(n - 1, 0, -1):
            backward.insert(0, a @ (b[:, text[t]] * backward[0]) / scale[t])
        n_start, n_move, n_say = forward[0] * backward[0], torch.zeros(2, 2, dtype=f8), torch.zeros(2, 4, dtype=f8)
        for t, word in enumerate(text):
            n_say[:, word] += forward[t] * backward[t]
            if t:
                n_move += forward[t - 1][:, None] * a * (b[:, word] * backward[t])[None] / scale[t]
        loss = -torch.stack(scale).log().sum() / n
        g = {
            "start": -(n_start - p) / n,
            "move": -(n_move - n_move.sum(1, keepdim=True) * a) / n,
            "say": -(n_say - n_say.sum(1, keepdim=True) * b) / n,
        }
        if i == 0:
            start, move, say = start - 1e-3 * g["start"], move - 1e-3 * g["move"], say - 1e-3 * g["say"]
    return loss, g


def truth():
    return analysis()[1]
