"""Feature matching by Sinkhorn iterations on the kernel exp(-cost / 0.05): one source keypoint is far from everything, its row of the kernel is 0."""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "plain",
    "loss_truth": 2.076516369,
    "fix": "log domain",
}

SOURCE = [[0.1, 0.2], [0.6, -0.3], [-2.2, 1.9]]
TARGET = [[0.0, 0.3], [0.5, -0.1], [0.4, 0.4]]
EPSILON = 0.05


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 0.9]))
        self.shift = nn.Parameter(torch.tensor([0.05, -0.02]))

    def forward(self, points):
        return points * self.scale + self.shift


def plan(cost, iterations=6):
    n, m = cost.shape
    kernel = torch.exp(-cost / EPSILON)
    v = torch.ones(m) / m
    for _ in range(iterations):
        u = (1 / n) / (kernel @ v)  # ORIGIN
        v = (1 / m) / (kernel.T @ u)
    return u[:, None] * kernel * v


def plan_log(cost, iterations=6):
    n, m = cost.shape
    log_k = -cost / EPSILON
    g = -torch.log(torch.full((m,), float(m)))
    for _ in range(iterations):
        f = -torch.log(torch.tensor(float(n))) - torch.logsumexp(log_k + g, 1)
        g = -torch.log(torch.tensor(float(m))) - torch.logsumexp(log_k + f[:, None], 0)
    return torch.exp(f[:, None] + log_k + g)


def build(fixed: bool = False):
    net = Matcher()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    source, target = torch.tensor(SOURCE), torch.tensor(TARGET)
    transport = plan_log if fixed else plan

    def step(i):
        opt.zero_grad()
        cost = (net(source)[:, None] - target).pow(2).sum(-1)
        loss = (transport(cost) * cost).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    scale, shift = leaf([1.0, 0.9]), leaf([0.05, -0.02])
    moved = torch.tensor(SOURCE, dtype=torch.float64) * scale + shift
    cost = (moved[:, None] - torch.tensor(TARGET, dtype=torch.float64)).pow(2).sum(-1)
    # a constant taken off a row of the cost is taken up by u: the same plan, with a kernel that does not vanish
    p = torch.exp(-(cost - cost.amin(1, keepdim=True).detach()) / EPSILON) / 3
    for _ in range(6):
        p = p / p.sum(1, keepdim=True) / 3
        p = p / p.sum(0, keepdim=True) / 3
    g = torch.autograd.grad((p * cost).sum(), [scale, shift])
    return {"scale": g[0], "shift": g[1]}
