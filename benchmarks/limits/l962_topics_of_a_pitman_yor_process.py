"""Expected number of topics of a Pitman-Yor process whose discount starts at 0: that of the Dirichlet process, theta (psi(theta + n) - psi(theta))."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.04832399091,
    "fix": "theta (g1 + d (g2 + g1^2) / 2) with digamma differences near d = 0",
}


def expected_topics(conc, discount, n, fixed):
    if fixed:
        near = discount.abs() < 1e-3
        d = torch.where(near, torch.ones_like(discount), discount)
        g1 = torch.digamma(conc + n) - torch.digamma(conc)
        g2 = torch.polygamma(1, conc + n) - torch.polygamma(1, conc)
        series = conc * (g1 + discount * (g2 + g1**2) / 2)
        log_ratio = torch.lgamma(conc + d + n) - torch.lgamma(conc + n) - torch.lgamma(conc + d) + torch.lgamma(conc)
        return torch.where(near, series, conc * torch.expm1(log_ratio) / d)
    rising = torch.lgamma(conc + discount + n) - torch.lgamma(conc + discount)
    plain = torch.lgamma(conc + n) - torch.lgamma(conc)
    growth = torch.exp(rising - plain)
    return conc / discount * (growth - 1)  # ORIGIN


class TopicPrior(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_conc = nn.Parameter(torch.tensor([0.4, 0.9]))
        self.discount = nn.Parameter(torch.tensor([0.0, 0.3]))
        self.register_buffer("tokens", torch.tensor([[8.0, 8.0], [14.0, 14.0], [30.0, 30.0]]))
        self.register_buffer("topics", torch.tensor([[3.0, 6.0], [5.0, 8.0], [6.0, 15.0]]))

    def forward(self, fixed):
        expected = expected_topics(self.log_conc.exp(), self.discount, self.tokens, fixed)
        return (expected.log() - self.topics.log()).pow(2).mean()


def build(fixed: bool = False):
    net = TopicPrior()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(log_conc, discount, tokens, topics):
    def at(theta, d, n):  # theta (prod (1 + d / (theta + j)) - 1) / d, telescoped: the sum of theta / (theta + j) prod_{i < j} (1 + d / (theta + i))
        total, product = 0.0, 1.0
        for j in range(int(n)):
            total = total + product * theta / (theta + j)
            product = product * (1 + d / (theta + j))
        return total

    loss = 0.0
    for row in range(3):
        for c in range(2):
            loss = loss + (at(log_conc[c].exp(), discount[c], tokens[row, c]).log() - topics[row, c].log()) ** 2
    return loss / 6


def truth():
    net = TopicPrior().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
