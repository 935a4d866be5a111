"""Discrete-time survival (DeepHit's likelihood): log(1 - cumulative incidence) of a censored subject that the net expects to have died long before."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "helper function, cumsum, gather",
    "loss_truth": 8.515491708,
    "fix": "logsumexp of the later bins - logsumexp of all",
}


def nll_pmf(phi, idx_durations, events, fixed=False):
    idx = idx_durations.view(-1, 1)
    if fixed:
        later = torch.arange(phi.shape[1]) > idx
        censored = torch.logsumexp(phi.masked_fill(~later, float("-inf")), 1) - torch.logsumexp(phi, 1)
        died = torch.log_softmax(phi, 1).gather(1, idx).squeeze(1)
        return -torch.where(events, died, censored).mean()
    pmf = torch.softmax(phi, dim=1)
    part1 = pmf.gather(1, idx).squeeze(1)[events].log().sum()
    survival = 1.0 - pmf.cumsum(1).gather(1, idx).squeeze(1)
    part2 = survival[~events].log().sum()  # ORIGIN
    return -(part1 + part2) / len(phi)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(2, 3)
        self.fc2 = nn.Linear(3, 4)
        with torch.no_grad():
            self.fc1.weight.copy_(torch.tensor([[2.0, 1.0], [-0.5, 0.5], [0.5, -1.0]]))
            self.fc1.bias.copy_(torch.tensor([0.5, 0.25, 0.5]))
            self.fc2.weight.copy_(torch.tensor([[3.0, 0.5, 0.25], [0.5, 0.25, -0.5], [0.25, -0.5, 1.0], [-1.0, 0.75, 0.5]]))
            self.fc2.bias.copy_(torch.tensor([0.5, 0.25, 0.0, -0.25]))

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


X, T, E = [[3.0, 1.0], [-0.4, 0.35], [0.2, -0.7], [-0.5, -0.1]], [2, 1, 0, 2], [False, True, False, True]


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, t, e = torch.tensor(X), torch.tensor(T), torch.tensor(E)

    def step(i):
        opt.zero_grad()
        loss = nll_pmf(net(x), t, e, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    w1, b1 = leaf([[2.0, 1.0], [-0.5, 0.5], [0.5, -1.0]]), leaf([0.5, 0.25, 0.5])
    w2, b2 = leaf([[3.0, 0.5, 0.25], [0.5, 0.25, -0.5], [0.25, -0.5, 1.0], [-1.0, 0.75, 0.5]]), leaf([0.5, 0.25, 0.0, -0.25])
    loss = 0
    for x, t, e in zip(X, T, E):
        s = torch.exp(w2 @ (w1 @ torch.tensor(x, dtype=torch.float64) + b1).clamp(min=0) + b2)
        loss = loss - torch.log((s[t] if e else s[t + 1 :].sum()) / s.sum()) / 4
    g = torch.autograd.grad(loss, [w1, b1, w2, b2])
    return loss, dict(zip(["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"], g))


def truth():
    return exact()[1]
